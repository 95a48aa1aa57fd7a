"""One rank's part of each call of a model: the same code in the rank that leads and in those that follow.

Hidden states go from stage to stage and from the last one back to the first rank, which has the head and samples. Of
the others of its stage each is given what logits are wanted of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from gpu.groups.groups import Groups
from gpu.model import Computed
from gpu.ranks.micro_batches import MicroBatch, micro_batches
from gpu.torch_model import TorchModel
from protocol.lora import LoraId
from protocol.step import Row


@final
class RankModel:
    """All ranks make the same calls."""

    def __init__(self, model: TorchModel, groups: Groups) -> None:
        self.model = model
        self._groups = groups

    def compute(self, rows: Sequence[Row], lora_ids: Sequence[LoraId]) -> Computed | None:
        """What all layers make of the rows, on the first rank; None on the others."""
        pipeline = self._groups.pipeline
        if pipeline.size == 1:
            computed = self.model.run_stage(rows, lora_ids)
            return computed if self._groups.leads else None
        batches = micro_batches(rows, lora_ids, pipeline.size)
        if pipeline.index > 0:
            for batch in batches:
                self._pass_on(batch)
            return None
        parts = []
        for batch in batches:
            parts.append(self.model.run_stage(batch.rows, batch.lora_ids))
            pipeline.send(parts[-1].hidden, 1)
        if not self._groups.leads:
            return None
        hidden = [pipeline.receive(torch.empty_like(part.hidden), pipeline.size - 1) for part in parts]
        if len(parts) == 1:
            return Computed(hidden[0], parts[0].first_token)
        return joined(batches, [part.first_token for part in parts], hidden)

    def _pass_on(self, batch: MicroBatch) -> None:
        """Of a later stage: what the stage before gives, to the next one, or from the last to the first rank."""
        pipeline, model = self._groups.pipeline, self.model
        empty = model.decoder.embedding.new_empty((batch.num_tokens, model.hidden_size))
        given = pipeline.receive(empty, pipeline.index - 1)
        computed = model.run_stage(batch.rows, batch.lora_ids, given)
        if pipeline.index < pipeline.size - 1:
            pipeline.send(computed.hidden, pipeline.index + 1)
        elif self._groups.tensor.index == 0:
            pipeline.send(computed.hidden, 0)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of the first stage's ranks: [rows, hidden] as the first of them has it, to [rows, vocab] float32."""
        return self.model.logits(self._groups.tensor.broadcast(hidden.contiguous()))

    def logits_of_given(self, rows: int) -> None:
        """The same where the hidden states are somebody else's, for whoever has a part in it."""
        groups, model = self._groups, self.model
        if groups.pipeline.index == 0:
            self.logits(model.decoder.embedding.new_empty((rows, model.hidden_size)))


def joined(
    batches: Sequence[MicroBatch], first_tokens: Sequence[Sequence[int]], hidden: Sequence[torch.Tensor]
) -> Computed:
    """The parts' hidden states in the order of the rows, whose tokens are together again. `first_tokens`: per part and
    row, where its tokens begin in the part's hidden states."""
    order: list[int] = []
    begins: list[int] = []
    base, last = 0, None
    for batch, firsts, states in zip(batches, first_tokens, hidden, strict=True):
        for row, first in zip(batch.rows, firsts, strict=True):
            if last is None or last.slot != row.slot:
                begins.append(len(order))
            order += range(base + first, base + first + len(row.token_ids))
            last = row
        base += len(states)
    whole = torch.cat(list(hidden))
    return Computed(whole[torch.tensor(order, device=whole.device)], begins)
