"""What the runner needs of whatever computes the model: rows of a plan to hidden states, hidden states to logits.

Implemented by gpu/torch_model (any device and data type) and gpu/native_model (CPU kernels); used by gpu/torch_runner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import attrs
import torch

from gpu.kv_frames import KvFrames
from gpu.lora_checkpoint import AdapterWeights, LoraModule
from protocol.lora import LoraId
from protocol.step import KvCopy, Row


@attrs.frozen(eq=False)
class Computed:
    """A step's outcome. Valid until the next step."""

    hidden: torch.Tensor
    """[tokens, hidden]: the last layer's output."""
    first_token: list[int]
    """Per row of the plan, where its tokens begin in `hidden`."""


class Model(Protocol):
    """Weights and KV pool. Not to be used by two threads at a time."""

    @property
    def dtype(self) -> str:
        """What the weights are computed in, for the operator to read: "float32", "q4_1", …"""

    @property
    def device(self) -> torch.device:
        """Where hidden states and logits are."""

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""

    @property
    def hidden_size(self) -> int:
        """Numbers in a hidden state."""

    @property
    def weights_bytes(self) -> int:
        """Of the weights in memory."""

    @property
    def lora_modules(self) -> Mapping[str, LoraModule]:
        """What adapters may add to, by name."""

    def add_lora(self, lora_id: LoraId, weights: AdapterWeights) -> None:
        """Rows may have the adapter from now on. The model was made for so many, of such ranks, and no other has this
        id."""

    def remove_lora(self, lora_id: LoraId) -> None:
        """No row has the adapter from now on."""

    def compute(self, rows: Sequence[Row], lora_ids: Sequence[LoraId] = ()) -> Computed:
        """Run the rows' tokens through all layers; the pool holds their keys and values afterwards. `rows` is not
        empty, and each has tokens and blocks for them. `lora_ids` has the adapter of each row, or is empty if none has
        one."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] to [rows, vocab] float32, which the caller may write to. Valid until the next call."""

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] to the same in float32 behind the final norm: what logits are made of. Of fresh memory."""

    def release_kv(self) -> None:
        """Give back the pool's memory, and what was recorded over it. Nothing is computed until `restore_kv`."""

    def restore_kv(self) -> None:
        """Have an empty pool again. Idempotent."""

    @property
    def block_bytes(self) -> list[int]:
        """Of one KV block, on each rank."""

    @property
    def block_kind(self) -> str:
        """By what, in what precision, in what type and in which order a KV block's numbers are kept: with the same
        weights, blocks of equal kinds can be exchanged."""

    def copy_blocks(self, saves: Sequence[KvCopy], loads: Sequence[KvCopy], frames: KvFrames) -> None:
        """Whole blocks from the pool to frames, and then from frames to the pool; done when it returns, on all ranks.
        `frames` are this process's own view of them."""

    def weights(self) -> Iterable[torch.Tensor]:
        """All that could be moved to the host's memory meanwhile, on a GPU."""

    def close(self) -> None:
        """Give back memory and threads. Idempotent."""
