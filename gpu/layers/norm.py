"""Root-mean-square normalisation, before each block, after the last one, and over heads (Qwen3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class RMSNorm:
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] to the same shape."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
