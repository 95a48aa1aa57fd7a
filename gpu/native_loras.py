"""Adapters as the CPU kernels read them: per linear of each layer a table of places, which steps name.

Used by gpu/native_model; the tables outlive the programs that point to them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import NamedTuple

import attrs
import numpy as np

from gpu.kernels.layout import FORMATS, lay_out
from gpu.kernels.structs import LowRank, Matrix
from gpu.lora_checkpoint import AdapterWeights, LinearName, LoraModule
from protocol.lora import LoraId


class LinearOf(NamedTuple):
    """One of a layer's linears."""

    layer: int
    name: LinearName


@attrs.frozen(eq=False)
class LoraTable:
    """What each place's adapter adds to one linear."""

    modules: list[tuple[str, LoraModule]]
    """The projections that the linear consists of, with their names."""
    low_ranks: ctypes.Array[LowRank]
    """[places][projections] of gpu.kernels.structs.LowRank."""


class NativeLoras:
    """At most `max_loras` of them, each in a place of its own."""

    def __init__(self, modules: Mapping[str, LoraModule], max_loras: int, max_rank: int, lanes: int) -> None:
        self.max_rank = max_rank
        self._lanes = lanes
        self._places: list[LoraId | None] = [None] * max_loras
        self._matrices: dict[LoraId, list[np.ndarray]] = {}
        by_linear: dict[LinearOf, list[tuple[str, LoraModule]]] = {}
        for name, module in modules.items():
            by_linear.setdefault(LinearOf(module.layer, module.linear), []).append((name, module))
        self.tables = {
            linear: LoraTable(named, (LowRank * (max_loras * len(named)))()) for linear, named in by_linear.items()
        }

    def place_of(self, lora_id: LoraId) -> int:
        return self._places.index(lora_id)

    def add(self, lora_id: LoraId, weights: AdapterWeights) -> None:
        """There is a place for it, which the runner sees to."""
        place = self._places.index(None)
        self._places[place] = lora_id
        kept = self._matrices[lora_id] = []
        for table in self.tables.values():
            for index, (name, _) in enumerate(table.modules, place * len(table.modules)):
                low_rank = weights.modules.get(name)
                if low_rank is not None:
                    table.low_ranks[index] = LowRank(self._matrix(low_rank.a, kept), self._matrix(low_rank.b, kept))

    def remove(self, lora_id: LoraId) -> None:
        """Also what was added in part."""
        place = self.place_of(lora_id)
        for table in self.tables.values():
            for index in range(place * len(table.modules), (place + 1) * len(table.modules)):
                table.low_ranks[index] = LowRank()
        self._places[place] = None
        del self._matrices[lora_id]

    def _matrix(self, numbers: np.ndarray, kept: list[np.ndarray]) -> Matrix:
        kind, raw = narrowest(numbers)
        kept.append(lay_out(kind, raw, self._lanes))
        return Matrix(kept[-1].ctypes.data, FORMATS[kind], *numbers.shape)


def narrowest(numbers: np.ndarray) -> tuple[str, np.ndarray]:
    """These float32 [rows, columns] in the fewest bytes that hold them to the last bit: their GGUF type, and [rows,
    bytes per row] uint8. Adapters are often saved in 16 bits, and to few tokens they cost what reading them costs."""
    words = np.ascontiguousarray(numbers).view(np.uint32)
    if not (words & 0xFFFF).any():
        return "BF16", (words >> 16).astype(np.uint16).view(np.uint8)
    with np.errstate(over="ignore"):
        halves = numbers.astype(np.float16)
    if np.array_equal(halves.astype(np.float32), numbers):
        return "F16", halves.view(np.uint8)
    return "F32", words.view(np.uint8)
