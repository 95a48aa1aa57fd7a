"""Experts whose matrices lie stacked in one tensor for all of them, as gpt-oss has them, by the names of single ones.

Weights are [experts, in, out], or in MXFP4: blocks of 32 numbers of 4 bits, two a byte, the first in the lower half,
with a scale of 8 bits, an exponent. MXFP4 is made whole as it is read, on the device that computes. Gate and up take
turns among the outputs. Used by gpu/weights.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
import torch
import torch.nn.functional as F

from gpu.span import Span
from protocol.errors import CheckpointError

if TYPE_CHECKING:
    from gpu.weights import SafetensorsWeights

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""What 4 bits mean: sign, two of exponent, one of mantissa."""
BLOCK = 32
"""Numbers with one scale."""
EXPONENT_BIAS = 127
EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")


class StackedExperts:
    """Implements gpu.weights.WeightSource over one in which experts are stacked."""

    def __init__(self, source: SafetensorsWeights) -> None:
        self._source = source
        self.num_bytes = source.num_bytes
        self.files = source.files

    @staticmethod
    def are_in(source: SafetensorsWeights) -> bool:
        """Whether the first layer's experts are stacked so."""
        first = "model.layers.0.mlp.experts.gate_up_proj"
        return first in source or f"{first}_blocks" in source

    def __contains__(self, name: str) -> bool:
        return name in self._source

    def read(self, name: str, into: torch.Tensor) -> int:
        if EXPERT.fullmatch(name) is None:
            return self._source.read(name, into)
        columns = Span.all_of(into.shape[1]) if into.ndim == 2 else None
        return self.read_cut(name, into, Span.all_of(len(into)), columns)

    def read_cut(self, name: str, into: torch.Tensor, rows: Span, columns: Span | None) -> int:
        found = EXPERT.fullmatch(name)
        if found is None:
            return self._source.read_cut(name, into, rows, columns)
        block, index, projection, kind = found[1], int(found[2]), found[3], found[4]
        stacked = f"{block}.down_proj" if projection == "down" else f"{block}.gate_up_proj"
        outputs = _Outputs.of(projection, rows)
        if columns is None:
            assert kind == "bias", f"{name} is a matrix"
            part = self._source.part(f"{stacked}_bias", index, (outputs.whole,), cut=(outputs.near,))
            into.copy_(part[outputs.among])
        elif f"{stacked}_blocks" in self._source:
            return self._read_mxfp4(stacked, index, outputs, columns, into)
        else:
            part = self._source.part(stacked, index, (columns.whole, outputs.whole), cut=(columns.slice, outputs.near))
            into.copy_(part.t()[outputs.among])
        return into.numel() * part.itemsize

    def kind(self, name: str, shape: tuple[int, int]) -> str:
        """Not of experts: the CPU kernels, which ask, do not compute them."""
        return self._source.kind(name, shape)

    def raw(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        """Not of experts, as above."""
        return self._source.raw(name, shape)

    def _read_mxfp4(self, stacked: str, index: int, outputs: _Outputs, columns: Span, into: torch.Tensor) -> int:
        if columns.whole % BLOCK:
            raise CheckpointError(f"tensor {stacked}_blocks: {columns.whole} columns are no multiple of {BLOCK}")
        groups = columns.whole // BLOCK
        first, last = columns.start // BLOCK, -(-columns.stop // BLOCK)
        cut = (outputs.near, slice(first, last))
        scales = self._source.part(f"{stacked}_scales", index, (outputs.whole, groups), torch.uint8, cut)
        blocks = self._source.part(f"{stacked}_blocks", index, (outputs.whole, groups, BLOCK // 2), torch.uint8, cut)
        scales, blocks = scales[outputs.among], blocks[outputs.among]
        numbers = from_mxfp4(blocks.to(into.device), scales.to(into.device))
        into.copy_(numbers[:, columns.start - first * BLOCK :][:, : columns.count])
        return blocks.numel() + scales.numel()


@attrs.frozen
class _Outputs:
    """Where some rows of a projection are among the outputs that lie together."""

    whole: int
    near: slice
    """Those that are read, …"""
    among: slice
    """… and which of them these are."""

    @classmethod
    def of(cls, projection: str, rows: Span) -> _Outputs:
        if projection == "down":
            return cls(rows.whole, rows.slice, slice(None))
        both = rows.times(2)
        return cls(both.whole, both.slice, slice(0 if projection == "gate" else 1, None, 2))


def from_mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Bytes [rows, groups, 16] and scales [rows, groups], both uint8, to [rows, groups * 32] float32."""
    pairs = torch.tensor([(FP4[byte & 15], FP4[byte >> 4]) for byte in range(256)], device=blocks.device)
    whole = F.embedding(blocks.int(), pairs).flatten(-2)  # [rows, groups, 32]; indexing takes five times as long
    exponents = scales.int() - EXPONENT_BIAS
    return (whole * torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents).unsqueeze(-1)).flatten(1)


def check_part(name: str, found: Sequence[int], index: int, shape: Sequence[int]) -> None:
    """Raises CheckpointError unless a tensor of shape `found` has, at this index, one of `shape`."""
    if len(found) != len(shape) + 1 or list(found[1:]) != list(shape) or index >= found[0]:
        raise CheckpointError(
            f"tensor {name} has shape {list(found)}, and config.json asks for {list(shape)} of expert {index}"
        )
