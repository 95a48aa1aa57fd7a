"""The leading rank's side of a model over ranks: loads it on all, as often as the runner asks. Used by torch_runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import attrs
import torch

from gpu.draft_model import DraftModel
from gpu.groups.groups import Groups
from gpu.kv_frames import KvFrames
from gpu.kv_pool import KvPoolSize
from gpu.load_draft_model import load_models
from gpu.model import Model
from gpu.ranks import commands
from gpu.ranks.attaching import attach_together
from gpu.ranks.command_group import CommandGroup
from gpu.ranks.joining import join_ranks
from gpu.ranks.lead_model import LeadModel
from gpu.ranks.loading import load_together
from gpu.ranks.rank_model import RankModel
from gpu.shared_weights import WeightsOffer
from gpu.torch_model import TorchModel
from protocol.kv import KvWindow
from protocol.spec import EngineSpec

Loaded = tuple[Model, KvPoolSize, DraftModel | None]
Load = Callable[[EngineSpec, Callable[[float], None], int | None, WeightsOffer | None], Loaded]
"""Of a spec, a report of progress, the number of the draft model's blocks if it is known, and an offer."""


@final
class Lead:
    """Made by `open_lead`."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._commands = CommandGroup(groups.control)

    def load_models(
        self,
        spec: EngineSpec,
        report: Callable[[float], None],
        draft_blocks: int | None = None,
        offer: WeightsOffer | None = None,
    ) -> Loaded:
        """As gpu.load_draft_model.load_models, the served model on all ranks. Raises also CheckpointError with what
        another rank says of why it could not."""
        self._commands.tell(commands.Load(spec.num_gpu_blocks_override, spec.max_model_len))

        def load(groups: Groups) -> Loaded:
            return load_models(spec, report, draft_blocks, offer, groups)

        model, size, draft = load_together(load, self._groups, self._commands)
        assert isinstance(model, TorchModel), "what ranks compute is computed in torch"
        pieces = self._groups.control.all_gather(torch.tensor(model.block_bytes))
        totals = self._groups.control.all_reduce(torch.tensor([model.weights_bytes, size.num_bytes]))
        weights_bytes, kv_bytes = totals.tolist()
        part = RankModel(model, self._groups)
        lead = LeadModel(part, self._commands, self._groups.tensor.size > 1, weights_bytes, pieces.tolist())
        return lead, attrs.evolve(size, num_bytes=kv_bytes), draft

    def attach_frames(self, window: KvWindow | None) -> KvFrames | None:
        """This rank's view of the window, which all ranks have then; those of before this rank has let go of. Raises
        OSError, and no rank has any, if one cannot map it; RankLostError."""
        with self._commands.told(commands.AttachFrames(window)):
            return attach_together(window, 0, self._commands)

    @property
    def is_lost(self) -> bool:
        """Another rank is gone: this process has to end, and nobody is told anything any more."""
        return self._commands.is_lost


@contextmanager
def open_lead(spec: EngineSpec) -> Iterator[Lead]:
    """Once all ranks are there. Raises StartError and RankLostError."""
    with join_ranks(spec, 0) as groups:
        yield Lead(groups)
