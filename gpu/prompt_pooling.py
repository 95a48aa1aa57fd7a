"""What is known of a prompt's vector while the prompt is computed, in whatever chunks. Lives in the prompt's slot.

A mean is added up in float64, position by position, so that chunks and company change no bit of it as long as the
hidden states are the same. Fed by gpu/pooling.
"""

from __future__ import annotations

import attrs
import torch

from protocol.pooling import Pooling, PoolingParams
from protocol.step import Row

SUMMED_ROWS = 64
"""Rows that are added up at once: their running sums are held in float64 meanwhile."""


@attrs.define(eq=False)
class PromptPooling:
    """One prompt."""

    params: PoolingParams
    num_tokens: int
    """Of the whole prompt."""
    total: torch.Tensor | None = None
    """[hidden] float64: the sum so far (MEAN), or the first state (CLS)."""

    def wanted(self, row: Row) -> range:
        """Which of the row's tokens the vector is made of."""
        count = len(row.token_ids)
        match self.params.pooling:
            case Pooling.MEAN:
                return range(count)
            case Pooling.CLS:
                return range(1 if row.start == 0 else 0)
            case Pooling.LAST:
                return range(count - 1, count) if self.ends_with(row) else range(0)

    def ends_with(self, row: Row) -> bool:
        return row.start + len(row.token_ids) == self.num_tokens

    def take(self, states: torch.Tensor) -> None:
        """[tokens, hidden] float32: those that were wanted of the next row, at least one."""
        for part in states.split(SUMMED_ROWS):
            wide = part.double()
            if self.total is not None:
                wide = torch.cat([self.total.unsqueeze(0), wide])
            self.total = wide.cumsum(dim=0)[-1]  # one after the other, where a plain sum has an order of its own

    def vector(self) -> torch.Tensor:
        """[hidden] float64, when all rows were taken."""
        assert self.total is not None, f"no state of {self.num_tokens} tokens was taken"
        return self.total / self.num_tokens if self.params.pooling is Pooling.MEAN else self.total
