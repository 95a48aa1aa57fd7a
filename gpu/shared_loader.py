"""Both ends of sharing a checkpoint's tensors for torch: a loader that shares what it makes, and one that maps that.

Both ask of the model's own loading code which tensors it wants (gpu/models/decoder), so that there is no second list.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import numpy as np
import torch

from gpu.layers.packed_weight import PackedWeight, can_map_packed, can_pack, pack
from gpu.shared_weights import TensorTable, weights_key
from gpu.span import Extent, Parts, count_of
from gpu.tensor_ipc import TensorIpcReceiver, TensorIpcSender
from gpu.weights import Rearrange, WeightLoader, WeightSource
from protocol.spec import SharedWeights
from protocol.tensors import FileTensor, TensorHandle

CPU = torch.device("cpu")

logger = logging.getLogger("trillm.weights")


def table_key(source: WeightSource, dtype: torch.dtype) -> str:
    return weights_key(source.files, str(dtype), torch.__version__)


def plain(parts: Parts) -> str:
    return "+".join(name for name, _ in parts)


def is_shared_packed(weight: torch.Tensor) -> bool:
    """Otherwise each engine packs for itself, or computes with the plain one."""
    return can_pack(weight) and can_map_packed()


def linear(parts: Parts) -> str:
    return f"linear:{plain(parts)}"


class SharingLoader(WeightLoader):
    """In the weights actor. What it gives has a shape and no content, so that the model made of it takes no memory."""

    def __init__(
        self, source: WeightSource, dtype: torch.dtype, report: Callable[[float], None], sender: TensorIpcSender
    ) -> None:
        super().__init__(source, dtype, CPU, report)
        self._sender = sender
        self._tensors: dict[str, TensorHandle] = {}
        self._embedding: torch.Tensor | None = None
        """The last matrix: in a tied model it is asked for a second time, as the head."""

    def matrix(self, parts: Parts, columns: Extent) -> torch.Tensor:
        self._embedding = super().matrix(parts, columns)
        return self._shared(plain(parts), self._embedding)

    def vector(self, parts: Parts, rearrange: Rearrange | None = None) -> torch.Tensor:
        return self._shared(plain(parts), super().vector(parts, rearrange))

    def linear_weight(
        self, parts: Parts, columns: Extent, rearrange: Rearrange | None = None
    ) -> torch.Tensor | PackedWeight:
        self._embedding = None
        return self._shared(linear(parts), self._stacked(parts, columns, rearrange), packs=True)

    def also_linear_weight(self, name: str, matrix: torch.Tensor) -> torch.Tensor | PackedWeight:
        assert self._embedding is not None, "a head before the embedding"
        if is_shared_packed(self._embedding):
            self._shared(linear([(name, 0)]), self._embedding, packs=True)
        self._embedding = None
        return matrix

    def finish(self, key: str) -> FileTensor:
        """Share the table of all that was shared, and nothing after it."""
        table = self._sender.share_bytes(msgspec.msgpack.encode(TensorTable(key, self._tensors)))
        self._sender.seal()
        return table

    def _shared(self, name: str, whole: torch.Tensor, packs: bool = False) -> torch.Tensor:
        self._tensors[name] = self._sender.share(pack(whole) if packs and is_shared_packed(whole) else whole)
        return whole.to("meta")


class SharedLoader(WeightLoader):
    """In an engine. What was not shared in this shape, it reads from the checkpoint. So does a rank what it has a part
    of: all ranks together have one copy."""

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        report: Callable[[float], None],
        tensors: dict[str, TensorHandle],
        receiver: TensorIpcReceiver,
        shares: int = 1,
    ) -> None:
        super().__init__(source, dtype, CPU, report, shares)
        self._tensors = tensors
        self._receiver = receiver

    def matrix(self, parts: Parts, columns: Extent) -> torch.Tensor:
        found = self._mapped(plain(parts), (_rows(parts), count_of(columns)))
        return found if isinstance(found, torch.Tensor) else super().matrix(parts, columns)

    def vector(self, parts: Parts, rearrange: Rearrange | None = None) -> torch.Tensor:
        found = self._mapped(plain(parts), (_rows(parts),))
        return found if isinstance(found, torch.Tensor) else super().vector(parts, rearrange)

    def linear_weight(
        self, parts: Parts, columns: Extent, rearrange: Rearrange | None = None
    ) -> torch.Tensor | PackedWeight:
        found = self._mapped(linear(parts), (_rows(parts), count_of(columns)))
        return super().linear_weight(parts, columns, rearrange) if found is None else found

    def also_linear_weight(self, name: str, matrix: torch.Tensor) -> torch.Tensor | PackedWeight:
        found = self._mapped(linear([(name, 0)]), tuple(matrix.shape))
        return super().also_linear_weight(name, matrix) if found is None else found

    def _mapped(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | PackedWeight | None:
        handle = self._tensors.get(name)
        if handle is None or tuple(handle.shape) != shape:
            return None
        self.num_bytes += int(np.prod(shape)) * self.dtype.itemsize
        return self._receiver.open(handle)


def shared_loader(
    share: SharedWeights | None,
    source: WeightSource,
    dtype: torch.dtype,
    report: Callable[[float], None],
    shares: int = 1,
) -> SharedLoader | None:
    """The loader that maps what the weights actor shares; None, with a line in the log, if that is not to be used."""
    if share is None or share.table is None:
        return None
    receiver = TensorIpcReceiver()
    try:
        table = msgspec.msgpack.decode(receiver.read_bytes(share.table), type=TensorTable)
    except (OSError, ValueError) as error:  # its maker has just died, say
        logger.warning("this engine loads by itself, since the weights actor's memory cannot be mapped: %s", error)
        return None
    if table.key != table_key(source, dtype):
        logger.warning("this engine loads by itself, since the checkpoint has changed since the weights were shared")
        return None
    return SharedLoader(source, dtype, report, table.tensors, receiver, shares)


def _rows(parts: Parts) -> int:
    return sum(count_of(rows) for _, rows in parts)
