"""What a step says of the tokens of prompts whose requests asked (`prompt_logprobs`). Used by gpu/torch_runner.

Each position of a prompt judges the token after it; logits are held for a few of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpu.logprobs import token_logprobs
from gpu.model import Computed, Model
from gpu.sequence_slot import SequenceSlot
from protocol.ids import Slot
from protocol.messages import TokenLogprobs
from protocol.step import PromptLogprobs, Row

PROMPT_LOGITS_ROWS = 64
"""Rows of logits that are held at once: 64 × 150,000 float32 are 38 MB."""


def prompt_logprobs(
    model: Model, rows: Sequence[Row], slots: Mapping[Slot, SequenceSlot], computed: Computed
) -> Iterator[PromptLogprobs]:
    """For each row inside a prompt whose request asked, what its positions say of the prompt tokens after them."""
    for row, first in zip(rows, computed.first_token, strict=True):
        slot = slots[row.slot]
        targets = slot.prompt_token_ids[row.start + 1 : row.start + len(row.token_ids) + 1]
        if slot.params.prompt_logprobs is None or not targets:
            continue
        found: list[TokenLogprobs] = []
        for done in range(0, len(targets), PROMPT_LOGITS_ROWS):
            part = targets[done : done + PROMPT_LOGITS_ROWS]
            logits = model.logits(computed.hidden[first + done : first + done + len(part)])
            found += token_logprobs(logits, part, [slot.params.prompt_logprobs] * len(part))
        yield PromptLogprobs(row.slot, row.start, found)
