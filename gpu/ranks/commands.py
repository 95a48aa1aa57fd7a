"""What the leading rank tells the others: calls of a model (gpu/model), of which each does its own part.

Tensors that belong to a command follow it, in groups that those ranks share who need them.
"""

from __future__ import annotations

import msgspec

from protocol.kv import KvWindow
from protocol.lora import LoraId
from protocol.step import KvCopy, Row


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Load the model anew; all ranks then agree whether they have it. The sizes are those of the time before, when it
    is loaded again; else None leaves them to what the engine's spec says."""

    num_gpu_blocks_override: int | None = None
    max_model_len: int | None = None


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Give back the model. Idempotent."""


class Compute(msgspec.Struct, frozen=True, tag="compute"):
    """A step's rows through all layers, in the micro-batches that every rank makes of them."""

    rows: list[Row]
    """Without what only sampling needs."""
    lora_ids: list[LoraId] = []


class Logits(msgspec.Struct, frozen=True, tag="logits"):
    """Of so many rows of hidden states, which the first rank gives to those of its stage; the others do nothing."""

    rows: int


class AddLora(msgspec.Struct, frozen=True, tag="add_lora"):
    """The factors follow, one after the other; then all ranks agree whether they have them."""

    lora_id: LoraId
    modules: list[tuple[str, tuple[int, int], tuple[int, int]]]
    """Name, and the shapes of a and b."""


class RemoveLora(msgspec.Struct, frozen=True, tag="remove_lora"):
    lora_id: LoraId


class ReleaseKv(msgspec.Struct, frozen=True, tag="release_kv"):
    """Give back the KV pool's memory."""


class RestoreKv(msgspec.Struct, frozen=True, tag="restore_kv"):
    """Have an empty pool again; then all ranks agree whether they have it."""


class AttachFrames(msgspec.Struct, frozen=True, tag="attach_frames"):
    """Let go of the connector's window, and map this one; then all ranks agree whether they have it."""

    window: KvWindow | None


class CopyKv(msgspec.Struct, frozen=True, tag="copy_kv"):
    """Blocks between the pool and the window, first all saves and then all loads. All ranks wait until each is done:
    what is done with the frames afterwards is others' affair."""

    saves: list[KvCopy]
    loads: list[KvCopy]


Command = Load | Drop | Compute | Logits | AddLora | RemoveLora | ReleaseKv | RestoreKv | AttachFrames | CopyKv
