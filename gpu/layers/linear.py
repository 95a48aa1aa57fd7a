"""A linear map: the one place where a weight meets an activation, so that other formats and kernels fit in here.

`make_linear` picks the implementation for the weight's device and type. Used by gpu/models.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F


class Linear(Protocol):
    """y = x W^T + b with W [out, in]; several projections of the same input are one Linear with stacked rows."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in] to [tokens, out]."""


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest one for W [out, in]; the caller lets go of `weight` unless it needs it for something else."""
    if can_pack(weight):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether PackedLinear takes it: float32 on a CPU. (oneDNN is slow in half precision on CPUs without support.)"""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()


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

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        # A single row would take another kernel, with another order of summation.
        rows = x.expand(2, -1) if len(x) == 1 else x
        return torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")[: len(x)]
