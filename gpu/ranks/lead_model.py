"""The model over ranks as the runner sees it: each call is told to the other ranks, and done here too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import final

import torch

from gpu.kv_frames import KvFrames
from gpu.lacking_memory import lacking
from gpu.lora_checkpoint import AdapterWeights, LoraModule
from gpu.model import Computed
from gpu.ranks.command_group import CommandGroup
from gpu.ranks.commands import AddLora, Compute, CopyKv, Drop, Logits, ReleaseKv, RemoveLora, RestoreKv
from gpu.ranks.rank_model import RankModel
from protocol.errors import RankLostError
from protocol.lora import LoraId
from protocol.step import KvCopy, Row

logger = logging.getLogger("trillm.ranks")


@final
class LeadModel:
    """Implements gpu.model.Model. Whatever raises RankLostError: this process has to end, and nobody is told anything
    any more."""

    def __init__(
        self,
        part: RankModel,
        commands: CommandGroup,
        shares_vocabulary: bool,
        weights_bytes: int,
        block_bytes: list[int],
    ) -> None:
        """`part` is this rank's. `weights_bytes` are all ranks' together, `block_bytes` those of each."""
        model = part.model
        self.dtype = model.dtype
        self.device = model.device
        self.vocab_size = model.vocab_size
        self.hidden_size = model.hidden_size
        self.weights_bytes = weights_bytes
        self.block_bytes = block_bytes
        self.block_kind = model.block_kind
        self.lora_modules: Mapping[str, LoraModule] = model.lora_modules
        self._part = part
        self._commands = commands
        self._shares_vocabulary = shares_vocabulary
        self._is_closed = False

    def compute(self, rows: Sequence[Row], lora_ids: Sequence[LoraId] = ()) -> Computed:
        bare = [Row(row.slot, row.start, row.token_ids, row.block_table, row.sample) for row in rows]
        adapters = list(lora_ids) if any(lora_ids) else []
        with self._commands.told(Compute(bare, adapters)):
            computed = self._part.compute(bare, adapters)
        assert computed is not None, "this is the first rank"
        return computed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self._shares_vocabulary:
            return self._part.model.logits(hidden)
        with self._commands.told(Logits(len(hidden))):
            return self._part.logits(hidden)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._part.model.normed(hidden)

    def add_lora(self, lora_id: LoraId, weights: AdapterWeights) -> None:
        """Raises MemoryError if a rank has no room for it."""
        modules = [(name, one.a.shape, one.b.shape) for name, one in weights.modules.items()]
        with self._commands.told(AddLora(lora_id, modules)):
            for one in weights.modules.values():
                self._commands.share(torch.tensor(one.a))
                self._commands.share(torch.tensor(one.b))
            self._together(lambda: self._part.model.add_lora(lora_id, weights))

    def remove_lora(self, lora_id: LoraId) -> None:
        with self._commands.told(RemoveLora(lora_id)):
            self._part.model.remove_lora(lora_id)

    def release_kv(self) -> None:
        with self._commands.told(ReleaseKv()):
            self._part.model.release_kv()

    def restore_kv(self) -> None:
        """Raises MemoryError if a rank has no room for it."""
        with self._commands.told(RestoreKv()):
            self._together(self._part.model.restore_kv)

    def copy_blocks(self, saves: Sequence[KvCopy], loads: Sequence[KvCopy], frames: KvFrames) -> None:
        with self._commands.told(CopyKv(list(saves), list(loads))):
            self._part.model.copy_blocks(saves, loads, frames)
            self._commands.agree(None)

    def weights(self) -> Iterable[torch.Tensor]:
        """This rank's: those of the others stay where they are."""
        logger.warning(
            "the other ranks keep their weights in their devices' memory; a deeper sleep gives them back too"
        )
        return self._part.model.weights()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._part.model.close()
        if self._commands.is_lost:
            return
        try:
            with self._commands.told(Drop()):
                pass
        except RankLostError:
            pass  # it has nothing to give back any more, and nobody waits for it

    def _together(self, action: Callable[[], None]) -> None:
        problem = self._commands.agree(lacking(action))
        if problem is not None:
            raise MemoryError(problem)
