"""The dummy runner's vectors: each state is a hash, and a hidden state is numbers that follow from it. Torch-free."""

from __future__ import annotations

import math
import struct
from typing import final

from gpu.fake_model import mix, unit
from protocol.pooling import Pooling, PoolingParams
from protocol.step import Pooled, Row


@final
class FakePooling:
    """One prompt that becomes a vector."""

    def __init__(self, params: PoolingParams, num_tokens: int, hidden_size: int) -> None:
        self.params = params
        self.num_tokens = num_tokens
        self._hidden_size = hidden_size
        self._total = [0.0] * hidden_size
        self._num_taken = 0

    def take(self, row: Row, states: list[int]) -> Pooled | None:
        """The states of the next row; the vector, if they were the last ones."""
        is_last = row.start + len(states) == self.num_tokens
        match self.params.pooling:
            case Pooling.LAST:
                wanted = states[-1:] if is_last else []
            case Pooling.CLS:
                wanted = states[:1] if row.start == 0 else []
            case Pooling.MEAN:
                wanted = states
        for state in wanted:
            self._total = [number + unit(mix(state, i)) - 0.5 for i, number in enumerate(self._total)]
            self._num_taken += 1
        return Pooled(row.slot, self._values()) if is_last else None

    def has_all(self, start: int) -> bool:
        """Whether nothing that it needs was left out before this position."""
        match self.params.pooling:
            case Pooling.LAST:
                return True
            case Pooling.CLS:
                return self._num_taken == (start > 0)
            case Pooling.MEAN:
                return self._num_taken == start

    def _values(self) -> bytes:
        vector = [number / self._num_taken for number in self._total][: self.params.dimensions]
        length = math.sqrt(math.fsum(number * number for number in vector))
        if self.params.normalize:
            vector = [number / length for number in vector]
        return struct.pack(f"<{len(vector)}f", *vector)
