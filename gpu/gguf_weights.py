"""Weights from a .gguf file, found through the index gguf.json that lies in the checkpoint directory.

Only the index is read, never GGUF's own metadata. Quantised tensors are dequantised while loading, which is most of the
loading time (gpu/gguf_quantisations).
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from gpu.gguf_names import KNOWN, gguf_name
from gpu.gguf_quantisations import QUANTISATIONS
from gpu.span import Span
from gpu.weights import wrong_shape
from protocol.errors import CheckpointError

PERMUTED = ("llama",)
"""Architectures whose query and key rows llama.cpp reorders, from (i, i + head_dim / 2) pairs to neighbours."""
NORMS_PLUS_1 = ("gemma", "gemma2", "gemma3")
"""Those whose norms' weights are stored as they are multiplied with, and in Hugging Face's files less 1."""


class GgufTensor(msgspec.Struct, frozen=True):
    """One entry of the index."""

    name: str
    type: str
    shape: list[int]
    """Outermost first, as torch has it."""
    offset: int
    nbytes: int


class GgufIndex(msgspec.Struct, frozen=True):
    """gguf.json."""

    version: int
    file: str
    size: int
    architecture: str
    tensors: list[GgufTensor]


class GgufWeights:
    """The tensors of one .gguf file, by their Hugging Face names."""

    def __init__(self, path: Path, data: np.ndarray, index: GgufIndex, head_dims: HeadDims) -> None:
        self._path = path
        self._data = data
        self._tensors = {tensor.name: tensor for tensor in index.tensors}
        self._architecture = index.architecture
        self._head_dims = head_dims
        self.num_bytes = sum(tensor.nbytes for tensor in index.tensors)
        self.files = [path]

    @classmethod
    def open(cls, path: Path) -> GgufWeights:
        """Raises CheckpointError for an index or file that is damaged, moved, changed in size or of an unknown kind."""
        try:
            index = msgspec.json.decode(path.read_bytes(), type=GgufIndex)
            head_dims = msgspec.json.decode((path.parent / "config.json").read_bytes(), type=HeadDims)
        except msgspec.DecodeError as error:
            raise CheckpointError(f"{path} or config.json beside it is damaged: {error}") from error
        if index.version != 1:
            raise CheckpointError(f"{path} has version {index.version}, and only 1 is known")
        if index.architecture not in KNOWN:
            raise CheckpointError(f"{path}: architecture {index.architecture!r} is none of {', '.join(KNOWN)}")
        file = Path(index.file)
        try:
            size = file.stat().st_size
        except OSError as error:
            raise CheckpointError(f"{file}, which {path} names, cannot be read: {error.strerror}") from error
        if size != index.size:
            raise CheckpointError(f"{file} has {size} bytes, and {path} expects {index.size}: truncated or replaced")
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)  # copy-on-write: torch wants it writable
        return cls(file, np.frombuffer(mapped, dtype=np.uint8), index, head_dims)

    def __contains__(self, name: str) -> bool:
        return gguf_name(name, self._architecture)[0] in self._tensors

    def read(self, name: str, into: torch.Tensor) -> int:
        tensor = self._tensor(name, into.shape)
        blocks = self._blocks(tensor)
        values = torch.from_numpy(QUANTISATIONS[tensor.type].decode(blocks)).view(tensor.shape)
        into.copy_(self._as_hugging_face(name, values))
        return tensor.nbytes

    def read_cut(self, name: str, into: torch.Tensor, rows: Span, columns: Span | None) -> int:
        """Reads the whole blocks that cover these columns. Rows that llama.cpp reorders are cut by whole heads."""
        tensor = self._tensor(name, [rows.whole] if columns is None else [rows.whole, columns.whole])
        down, across = (Span.all_of(1), rows) if columns is None else (rows, columns)
        blocks = self._blocks(tensor)
        quantisation = QUANTISATIONS[tensor.type]
        first, last = across.start // quantisation.block, -(-across.stop // quantisation.block)
        near = blocks.reshape(down.whole, -1, quantisation.block_bytes)[down.slice, first:last]
        near = np.ascontiguousarray(near).reshape(-1, quantisation.block_bytes)
        values = torch.from_numpy(quantisation.decode(near)).view(down.count, -1)
        values = values[:, across.start - first * quantisation.block :][:, : across.count]
        into.copy_(self._as_hugging_face(name, values[0] if columns is None else values))
        return near.nbytes

    def kind(self, name: str, shape: tuple[int, int]) -> str:
        return self._tensor(name, shape).type

    def raw(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        rows = self._blocks(self._tensor(name, shape)).reshape(shape[0], -1)
        if self._is_permuted(name):
            rows = rows[unpermuted(torch.arange(shape[0]), self._head_dims.value).numpy()]
        return rows

    def _as_hugging_face(self, name: str, values: torch.Tensor) -> torch.Tensor:
        if self._is_permuted(name):
            values = unpermuted(values, self._head_dims.value)
        if self._architecture in NORMS_PLUS_1 and name.endswith("norm.weight"):
            values = values - 1.0
        return values

    def _is_permuted(self, name: str) -> bool:
        return self._architecture in PERMUTED and ".self_attn." in name and (".q_proj." in name or ".k_proj." in name)

    def _tensor(self, name: str, shape: Sequence[int]) -> GgufTensor:
        found, expert = gguf_name(name, self._architecture)
        tensor = self._tensors.get(found)
        if tensor is None:
            raise CheckpointError(f"{self._path}: tensor {found} of shape {list(shape)} is missing")
        if expert is not None:
            tensor = _slice(tensor, expert)
        elif list(shape) == [1, *tensor.shape]:  # llama.cpp's converter drops dimensions of 1
            tensor = msgspec.structs.replace(tensor, shape=list(shape))
        if tensor.shape != list(shape):
            raise wrong_shape(self._path, tensor.name, tensor.shape, shape)
        return tensor

    def _blocks(self, tensor: GgufTensor) -> np.ndarray:
        """[blocks, block_bytes] uint8."""
        quantisation = QUANTISATIONS.get(tensor.type)
        if quantisation is None:
            known = ", ".join(QUANTISATIONS)
            raise CheckpointError(f"{self._path}: tensor {tensor.name} has type {tensor.type}, none of {known}")
        count = int(np.prod(tensor.shape))
        expected = count // quantisation.block * quantisation.block_bytes
        end = tensor.offset + tensor.nbytes
        if tensor.nbytes != expected or tensor.shape[-1] % quantisation.block or end > self._data.size:
            raise CheckpointError(
                f"{self._path}: tensor {tensor.name} of type {tensor.type} and shape {tensor.shape} should take "
                f"{expected} bytes; the index says {tensor.nbytes} at {tensor.offset} of {self._data.size}"
            )
        return self._data[tensor.offset : end].reshape(-1, quantisation.block_bytes)


def _slice(tensor: GgufTensor, index: int) -> GgufTensor:
    """One matrix of several of the same shape. An index that is not there gives a shape that nobody expects."""
    count, *shape = tensor.shape
    if index >= count:
        return msgspec.structs.replace(tensor, shape=[0, *shape])
    nbytes = tensor.nbytes // count
    return msgspec.structs.replace(tensor, shape=shape, offset=tensor.offset + index * nbytes, nbytes=nbytes)


class HeadDims(msgspec.Struct, frozen=True):
    """What undoing the permutation needs of config.json."""

    num_attention_heads: int
    hidden_size: int
    head_dim: int | None = None

    @property
    def value(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


def unpermuted(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Undo llama.cpp's order of query or key rows, [heads * head_dim, ...] to the same shape."""
    paired = rows.unflatten(0, (-1, head_dim // 2, 2))  # [heads, head_dim / 2, 2, ...]
    return paired.transpose(1, 2).reshape(rows.shape)
