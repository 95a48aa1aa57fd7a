"""A linear beside which adapters are computed, for those tokens of a step whose sequences have one.

Used by gpu/torch_loras, which puts one around each linear that adapters may change.
"""

from __future__ import annotations

import attrs
import torch

from gpu.layers.fixed_rows import FixedRowsLinear
from gpu.layers.linear import Linear, make_linear
from protocol.lora import LoraId


@attrs.define(eq=False)
class AdaptedStep:
    """What the linears of a model have to know of the step that they compute: set before it, and empty again after."""

    tokens_of: dict[LoraId, torch.Tensor] = attrs.field(factory=dict)
    """[count] int64 by adapter: places of its tokens in the flat step."""


@attrs.frozen(eq=False)
class LoraProduct:
    """(x a^T) b^T, for some of a linear's rows."""

    first_row: int
    rows: int
    down: Linear
    """[rank, columns]."""
    up: Linear
    """[rows, rank]."""


class LoraLinear:
    """Implements gpu.layers.linear.Linear around another one."""

    def __init__(self, linear: Linear, step: AdaptedStep) -> None:
        self.linear = linear
        self.products: dict[LoraId, list[LoraProduct]] = {}
        self._step = step

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        for lora_id, tokens in self._step.tokens_of.items():
            for product in self.products.get(lora_id, ()):
                added = product.up(product.down(x[tokens]))
                y[:, product.first_row : product.first_row + product.rows].index_add_(0, tokens, added)
        return y

    def make(self, weight: torch.Tensor) -> Linear:
        """A factor of a product, which depends on the batch no more than the linear itself does."""
        linear = make_linear(weight)
        return FixedRowsLinear(linear) if isinstance(self.linear, FixedRowsLinear) else linear
