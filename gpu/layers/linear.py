"""A linear map: the one place where a weight meets an activation, so that other formats and kernels fit in here."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class Linear:
    """y = x W^T + b with W [out, in]; several projections of the same input are one Linear with stacked rows."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in] to [tokens, out]."""
        return F.linear(x, self.weight, self.bias)
