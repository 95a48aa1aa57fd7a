"""Root-mean-square normalisation: before and after a layer's blocks, after the last one, and over queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F


class Norm(Protocol):
    """From [..., size] to the same shape."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


Compute = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
"""From x [..., size], weight [size] and eps; gpu/compiled_parts may put another one in."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def wide_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


class RMSNorm:
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self.compute: Compute = rms_norm

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x, self.weight, self.eps)


class WideRMSNorm:
    """The same, computed in float32 with float32 weights and rounded once (Gemma)."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight.float()
        self.eps = eps
        self.compute: Compute = wide_rms_norm

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x, self.weight, self.eps)


class NoNorm:
    """Where a layer has none."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


class WholeNorm:
    """A norm over all heads of a token together: [tokens, heads, head_dim] to the same shape."""

    def __init__(self, norm: Norm) -> None:
        self.norm = norm

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.flatten(-2)).view(x.shape)
