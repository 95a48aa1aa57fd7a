"""The gated feed-forward block of a layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from gpu.layers.linear import Linear


class GatedMLP:
    """down(silu(gate(x)) * up(x)), with gate and up stacked into one linear."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up = gate_up  # [2 * intermediate, hidden]
        self.down = down  # [hidden, intermediate]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same shape."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)
