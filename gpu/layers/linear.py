"""A linear map: the one place where a weight meets an activation, so that other formats and kernels fit in here.

`make_linear` picks the implementation for the weight's device and type. Used by gpu/models.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from gpu.layers.packed_weight import PackedWeight, can_pack, pack


class Linear(Protocol):
    """y = x W^T + b with W [out, in]; several projections of the same input are one Linear with stacked rows."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in] to [tokens, out]."""


def make_linear(weight: torch.Tensor | PackedWeight, bias: torch.Tensor | None = None) -> Linear:
    """The fastest one for W [out, in]; the caller lets go of `weight` unless it needs it for something else."""
    if isinstance(weight, PackedWeight):
        return PackedLinear(weight, bias)
    if can_pack(weight):
        return PackedLinear(pack(weight), bias)
    return PlainLinear(weight, bias)


class PlainLinear:
    """torch's own."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """oneDNN over a weight that is laid out for it once: up to twice as fast as torch's own at few rows.

    And a row's result does not depend, to the last bit, on the rows beside it, which torch's own (MKL) does not give:
    so a sequence gets the same logits from its linears in any batch and in any chunking (tests/gpu/test_linear).
    """

    def __init__(self, weight: PackedWeight, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        # A single row would take another kernel, with another order of summation.
        rows = x.expand(2, -1) if len(x) == 1 else x
        return torch.ops.mkldnn._linear_pointwise(rows, self.weight.tensor, self.bias, "none", [], "")[: len(x)]
