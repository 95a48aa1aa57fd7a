"""A model over ranks as one of them computes it: what a stage gives goes to the next one, and back to the first."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpu.groups.groups import Groups
from gpu.load_model import load_model
from gpu.model import Computed
from gpu.torch_model import TorchModel
from protocol.lora import LoraId
from protocol.spec import EngineSpec
from protocol.step import Row


class StagedModel:
    """All ranks make the same calls. Those of later stages have hidden states in the place of logits."""

    def __init__(self, model: TorchModel, groups: Groups) -> None:
        self.model = model
        self.lora_modules = model.lora_modules
        self.add_lora = model.add_lora
        self._pipeline = groups.pipeline

    @classmethod
    def load(cls, spec: EngineSpec, groups: Groups) -> StagedModel:
        with torch.inference_mode():
            model, _ = load_model(spec, lambda _: None, groups=groups)
        assert isinstance(model, TorchModel)
        return cls(model, groups)

    def compute(self, rows: Sequence[Row], lora_ids: Sequence[LoraId] = ()) -> Computed:
        """Hidden states after all layers, on the first stage."""
        pipeline, model = self._pipeline, self.model
        if pipeline.size == 1:
            return model.compute(rows, lora_ids)
        given = None
        if pipeline.index > 0:
            shape = (sum(len(row.token_ids) for row in rows), model.hidden_size)
            given = pipeline.receive(model.decoder.embedding.new_empty(shape), pipeline.index - 1)
        computed = model.run_stage(rows, lora_ids, given)
        pipeline.send(computed.hidden, (pipeline.index + 1) % pipeline.size)
        if pipeline.index > 0:
            return computed
        return Computed(pipeline.receive(torch.empty_like(computed.hidden), pipeline.size - 1), computed.first_token)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.logits(hidden) if self._pipeline.index == 0 else hidden
