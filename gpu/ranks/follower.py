"""A rank that follows: does its part of each call that the leading one makes. Used by actors/rank/main, whose compute
thread this is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, assert_never, final

import msgspec
import numpy as np
import torch

from gpu.cards import take_card
from gpu.groups.groups import Groups
from gpu.host_memory import give_back_freed_memory
from gpu.kv_frames import KvFrames
from gpu.lacking_memory import lacking
from gpu.load_model import load_model
from gpu.load_report import Report
from gpu.lora_checkpoint import AdapterWeights, LowRank
from gpu.ranks.attaching import attach_together
from gpu.ranks.command_group import CommandGroup
from gpu.ranks.commands import (
    AddLora,
    AttachFrames,
    Command,
    Compute,
    CopyKv,
    Drop,
    Load,
    Logits,
    ReleaseKv,
    RemoveLora,
    RestoreKv,
)
from gpu.ranks.joining import join_ranks
from gpu.ranks.loading import load_together
from gpu.ranks.rank_model import RankModel
from gpu.shared_weights import WeightsOffer
from gpu.torch_model import TorchModel
from protocol.errors import CheckpointError, StartError
from protocol.kv import KvWindow
from protocol.spec import EngineSpec


class Work(Protocol):
    """What others see of it."""

    step: int

    def enter(self, phase: str) -> None:
        """ "step" while a command is carried out, "idle" while there is none."""


@final
class Follower:
    """One rank's model, if it has one now."""

    def __init__(
        self, spec: EngineSpec, groups: Groups, report: Report, loaded: Callable[[], None], offer: WeightsOffer | None
    ) -> None:
        """`loaded` is called whenever all ranks have the model."""
        self._spec = spec
        self._groups = groups
        self._commands = CommandGroup(groups.control)
        self._report = report
        self._loaded = loaded
        self._offer = offer
        self._part: RankModel | None = None
        self._frames: KvFrames | None = None

    @torch.inference_mode()
    def serve(self, work: Work) -> None:
        """Do what is told, for ever. Raises RankLostError when another rank is gone, and what breaks this one: then
        this process has to end."""
        while True:
            command = self._commands.hear()
            work.enter("load" if isinstance(command, Load) else "step")
            self._do(command)
            work.step += isinstance(command, Compute)
            work.enter("idle")

    def _do(self, command: Command) -> None:
        match command:
            case Compute(rows=rows, lora_ids=lora_ids):
                self._loaded_part.compute(rows, lora_ids)
            case Logits(rows=count):
                self._loaded_part.logits_of_given(count)
            case AddLora():
                self._add_lora(command)
            case RemoveLora(lora_id=lora_id):
                self._model.remove_lora(lora_id)
            case ReleaseKv():
                self._model.release_kv()
                self._give_back()
            case RestoreKv():
                self._commands.agree(lacking(self._model.restore_kv))
            case AttachFrames(window=window):
                self._attach(window)
            case CopyKv(saves=saves, loads=loads):
                assert self._frames is not None, "copies without a window"
                self._model.copy_blocks(saves, loads, self._frames)
                self._commands.agree(None)
            case Load():
                self._load(command)
            case Drop():
                self._drop()
            case _:
                assert_never(command)

    @property
    def _loaded_part(self) -> RankModel:
        assert self._part is not None, "a command for a model that is not loaded"
        return self._part

    @property
    def _model(self) -> TorchModel:
        return self._loaded_part.model

    def _attach(self, window: KvWindow | None) -> None:
        """What goes wrong, the leading rank is told."""
        if self._frames is not None:
            self._frames.close()
            self._frames = None
        with suppress(OSError):
            self._frames = attach_together(window, self._groups.control.index, self._commands)

    def _add_lora(self, command: AddLora) -> None:
        modules = {name: LowRank(self._factor(a), self._factor(b)) for name, a, b in command.modules}
        self._commands.agree(lacking(lambda: self._model.add_lora(command.lora_id, AdapterWeights(modules))))

    def _factor(self, shape: tuple[int, int]) -> np.ndarray:
        return self._commands.share(torch.empty(shape, dtype=torch.float32)).numpy()

    def _load(self, command: Load) -> None:
        """What goes wrong here, the leading rank is told, and decides what is to be done."""
        spec = msgspec.structs.replace(
            self._spec,
            num_gpu_blocks_override=command.num_gpu_blocks_override,
            max_model_len=command.max_model_len,
        )
        try:
            model, size = load_together(
                lambda groups: load_model(spec, self._report, self._offer, groups), self._groups, self._commands
            )
        except (CheckpointError, StartError, MemoryError):
            self._drop()
            return
        assert isinstance(model, TorchModel), "what ranks compute is computed in torch"
        self._groups.control.all_gather(torch.tensor(model.block_bytes))
        self._groups.control.all_reduce(torch.tensor([model.weights_bytes, size.num_bytes]))
        self._part = RankModel(model, self._groups)
        self._report(1.0)
        self._loaded()

    def _drop(self) -> None:
        if self._part is not None:
            self._part.model.close()
            self._part = None
        self._give_back()

    def _give_back(self) -> None:
        give_back_freed_memory()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def follow(
    spec: EngineSpec, rank: int, report: Report, loaded: Callable[[], None], offer: WeightsOffer | None, work: Work
) -> None:
    """Until this process ends. Raises as `Follower.serve`, and StartError where a rank cannot join."""
    take_card(spec, rank)
    with join_ranks(spec, rank) as groups:
        Follower(spec, groups, report, loaded, offer).serve(work)
