"""Where a model's weights come from, tensor by tensor, and the loader that puts them into the tensors it computes with.

Used by gpu/models. Two sources: safetensors (here) and GGUF through gguf.json (gpu/gguf_weights). Every fault of the
files is a CheckpointError that names the file, the tensor and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from gpu.layers.packed_weight import PackedWeight, can_pack, pack
from gpu.span import Extent, Parts, Span, count_of, is_cut, span
from gpu.stacked_experts import StackedExperts, check_part
from gpu.weight_files import GGUF_INDEX, INDEX, SINGLE, weight_map
from protocol.errors import CheckpointError

COMPUTED = (torch.float32, torch.bfloat16, torch.float16)

Rearrange = Callable[[torch.Tensor], None]
"""Puts the rows of a tensor into the order that they are computed in, in place."""


class WeightSource(Protocol):
    """Tensors by their Hugging Face name."""

    num_bytes: int
    """Of all tensors as they lie in the files: the measure of progress."""
    files: list[Path]
    """Those that hold tensors."""

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str, into: torch.Tensor) -> int:
        """Fill `into`, whose shape is the expected one; convert to its dtype. Returns the bytes read from the file.

        Raises CheckpointError for a tensor that is missing, cut off, of another shape or of an unknown type.
        """

    def read_cut(self, name: str, into: torch.Tensor, rows: Span, columns: Span | None) -> int:
        """As `read`, for these rows (and columns, of a matrix) of a tensor that has all of them. Reads no more than
        those, where the format lets it."""

    def kind(self, name: str, shape: tuple[int, int]) -> str:
        """GGUF's name of the tensor's type: "F32", "BF16", "Q4_1", … `shape` is what it should have.
        Raises CheckpointError if it is missing."""

    def raw(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        """The bytes of a matrix of this shape as they lie in the file, [rows, bytes per row] uint8; not to be written.

        Raises CheckpointError as `read` does.
        """


def open_weights(checkpoint: Path) -> WeightSource:
    """The source that lies in this directory. Raises CheckpointError if there is none, or it is damaged."""
    if (checkpoint / GGUF_INDEX).exists():
        from gpu.gguf_weights import GgufWeights

        return GgufWeights.open(checkpoint / GGUF_INDEX)
    if (checkpoint / INDEX).exists():
        return _with_experts(SafetensorsWeights.open_sharded(checkpoint / INDEX))
    if (checkpoint / SINGLE).exists():
        return _with_experts(SafetensorsWeights([checkpoint / SINGLE]))
    raise CheckpointError(f"{checkpoint} holds no weights: none of {SINGLE}, {INDEX}, {GGUF_INDEX} is there")


def _with_experts(source: SafetensorsWeights) -> WeightSource:
    return StackedExperts(source) if StackedExperts.are_in(source) else source


PREFIX = "model."
"""What the names of all tensors but the head's begin with, unless the model was saved without a head."""


class SafetensorsWeights:
    """One or several .safetensors files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._names = ", ".join(path.name for path in paths)
        self._paths: dict[str, Path] = {}
        self._files: dict[Path, Any] = {}
        self.files = list(paths)
        self.num_bytes = 0
        for path in paths:
            try:
                file = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is no whole safetensors file: {error}") from error
            self._files[path] = file
            self._paths |= dict.fromkeys(file.keys(), path)
            self.num_bytes += path.stat().st_size
        first = "embed_tokens.weight"
        self._prefix = PREFIX if first in self._paths and PREFIX + first not in self._paths else ""
        """What the names here lack."""

    @classmethod
    def open_sharded(cls, index: Path) -> SafetensorsWeights:
        """The shards that a model.safetensors.index.json names. Raises CheckpointError naming index or shard."""
        shard_of = weight_map(index)
        shards = sorted(set(shard_of.values()))
        for shard in shards:
            if Path(shard).name != shard:
                raise CheckpointError(f"{index} names {shard!r}, which is no file beside it")
            if not (index.parent / shard).exists():
                raise CheckpointError(f"{index} names {shard}, and that file is missing")
        source = cls([index.parent / shard for shard in shards])
        for name, shard in shard_of.items():
            if name not in source:
                raise CheckpointError(f"{index.parent / shard} lacks tensor {name}, which {index.name} says it holds")
        return source

    def __contains__(self, name: str) -> bool:
        return self._stored(name) in self._paths

    def read(self, name: str, into: torch.Tensor) -> int:
        tensor = self._tensor(name, into.shape)
        into.copy_(tensor)
        return tensor.nbytes

    def read_cut(self, name: str, into: torch.Tensor, rows: Span, columns: Span | None) -> int:
        spans = [rows] if columns is None else [rows, columns]
        shape = [one.whole for one in spans]
        path = self._path(name, shape)
        whole = self._files[path].get_slice(self._stored(name))
        if whole.get_shape() != shape:
            raise wrong_shape(path, name, whole.get_shape(), shape)
        tensor = whole[tuple(one.slice for one in spans)]
        _check_computed(path, name, tensor.dtype)
        into.copy_(tensor)
        return tensor.nbytes

    def kind(self, name: str, shape: tuple[int, int]) -> str:
        return self._files[self._path(name, shape)].get_slice(self._stored(name)).get_dtype()

    def raw(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        return self._tensor(name, shape).view(torch.uint8).numpy()

    def part(
        self,
        name: str,
        index: int,
        shape: Sequence[int],
        dtype: torch.dtype | None = None,
        cut: tuple[slice, ...] = (),
    ) -> torch.Tensor:
        """One of the tensors of `shape` that are stacked in this one, or what `cut` takes of it; of this type, or else
        of one that is computed.

        Reads no more than that. Raises CheckpointError as `read` does."""
        path = self._path(name, shape)
        whole = self._files[path].get_slice(self._stored(name))
        check_part(f"{path.name}: {name}", whole.get_shape(), index, shape)
        tensor: torch.Tensor = whole[(index, *cut)]
        _check_computed(path, name, tensor.dtype, COMPUTED if dtype is None else (dtype,))
        return tensor

    def _stored(self, name: str) -> str:
        """The tensor's name in the files."""
        return name.removeprefix(self._prefix)

    def _path(self, name: str, shape: Sequence[int]) -> Path:
        path = self._paths.get(self._stored(name))
        if path is None:
            raise CheckpointError(f"tensor {name} of shape {list(shape)} is missing in {self._names}")
        return path

    def _tensor(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        path = self._path(name, shape)
        tensor = self._files[path].get_tensor(self._stored(name))
        if list(tensor.shape) != list(shape):
            raise wrong_shape(path, name, tensor.shape, shape)
        _check_computed(path, name, tensor.dtype)
        return tensor


def _check_computed(path: Path, name: str, dtype: torch.dtype, computed: Sequence[torch.dtype] = COMPUTED) -> None:
    if dtype not in computed:
        raise CheckpointError(f"{path}: tensor {name} has type {dtype}, which is not computed here")


def wrong_shape(path: Path, name: str, found: Sequence[int], expected: Sequence[int]) -> CheckpointError:
    return CheckpointError(f"{path}: tensor {name} has shape {list(found)}, and config.json asks for {list(expected)}")


class WeightLoader:
    """Reads tensors into fresh memory of the device, stacked where the model computes them together."""

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        report: Callable[[float], None],
        shares: int = 1,
    ) -> None:
        """`shares` is among how many ranks the model is cut: a measure of progress."""
        self.source = source
        self.dtype = dtype
        self.device = device
        self.num_bytes = 0
        """Bytes of the tensors made so far, as they lie on the device."""
        self.read_bytes = 0
        """Of the files."""
        self._report = report
        self._expected = max(1, source.num_bytes // shares)

    def matrix(self, parts: Parts, columns: Extent) -> torch.Tensor:
        """Tensors (name, rows) of [rows, columns], stacked: [sum of rows, columns]."""
        return self._stacked(parts, columns)

    def vector(self, parts: Parts, rearrange: Rearrange | None = None) -> torch.Tensor:
        """Tensors (name, size) of [size], one after the other: [sum of sizes]."""
        return self._stacked(parts, None, rearrange)

    def linear_weight(
        self, parts: Parts, columns: Extent, rearrange: Rearrange | None = None
    ) -> torch.Tensor | PackedWeight:
        """As `matrix`, in the form that layers/linear computes with."""
        whole = self._stacked(parts, columns, rearrange)
        return pack(whole) if can_pack(whole) else whole

    def also_linear_weight(self, name: str, matrix: torch.Tensor) -> torch.Tensor | PackedWeight:
        """What `matrix` gave for the tensor of this name, as `linear_weight` gives it: packed it is a second copy."""
        if not can_pack(matrix):
            return matrix
        self.num_bytes += matrix.nbytes
        return pack(matrix)

    def _stacked(self, parts: Parts, columns: Extent | None, rearrange: Rearrange | None = None) -> torch.Tensor:
        sizes = [count_of(rows) for _, rows in parts]
        row = () if columns is None else (count_of(columns),)
        whole = torch.empty((sum(sizes), *row), dtype=self.dtype, device=self.device)
        for (name, rows), part in zip(parts, whole.split(sizes), strict=True):
            if is_cut(rows) or (columns is not None and is_cut(columns)):
                across = None if columns is None else span(columns)
                self.read_bytes += self.source.read_cut(name, part, span(rows), across)
            else:
                self.read_bytes += self.source.read(name, part)
            self._report(min(1.0, self.read_bytes / self._expected))
        if rearrange is not None:
            rearrange(whole)
        self.num_bytes += whole.nbytes
        return whole
