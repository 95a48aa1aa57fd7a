"""A linear that always multiplies the same number of rows, so that a row's result depends on no row beside it.

Matrix products choose their order of summation by the shape of the whole product: a row gets other last bits in a
larger batch. With one shape there is one order. Used by gpu/linear_change for --batch-invariant.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from gpu.layers.linear import Linear

ROWS = 128
"""Few enough for a decode step to stay bound by reading the weight, enough for prefill not to read it too often."""


class FixedRowsLinear:
    """Implements gpu.layers.linear.Linear around another one."""

    def __init__(self, linear: Linear) -> None:
        self.linear = linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [self.linear(F.pad(part, (0, 0, 0, ROWS - len(part)))) for part in x.split(ROWS)]
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs))[: len(x)]
