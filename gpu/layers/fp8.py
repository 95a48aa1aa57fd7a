"""Linears in 8-bit floating point (e4m3): half the memory and, where a step is bound by it, half the time of bfloat16.

Weights have a scale per output row, made when they are loaded; activations one per token, made on the way. Products
are torch._scaled_mm's. Used by gpu/linear_change. Held to float32 on a CPU; never run on a GPU so far.
"""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
SMALLEST_SCALE = 1e-12
"""For rows of zeros."""
ALIGNMENT = 16
"""Of both sides of a weight."""


class Fp8Linear:
    """Implements gpu.layers.linear.Linear."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight` is [out, in], both multiples of ALIGNMENT."""
        self.weight, scales = to_fp8(weight)
        self.scales = scales.t().contiguous()  # [1, out]
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rounded, scales = to_fp8(x)
        out: torch.Tensor = torch._scaled_mm(
            rounded, self.weight.t(), scale_a=scales, scale_b=self.scales, out_dtype=x.dtype
        )
        return out if self.bias is None else out + self.bias


def to_fp8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, columns] as e4m3 and what it is to be multiplied with, [rows, 1] float32. A row with NaN stays one."""
    wide = rows.float()
    scales = wide.abs().amax(dim=1, keepdim=True).clamp(min=SMALLEST_SCALE) / LARGEST
    return (wide / scales).to(FP8), scales
