"""The gated feed-forward block of a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from gpu.layers.linear import Linear


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GELU's approximation by a hyperbolic tangent."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
}
"""By their name in config.json."""


class GatedMLP:
    """down(activation(gate(x)) * up(x)), with gate and up stacked into one linear."""

    def __init__(self, gate_up: Linear, down: Linear, activation: str = "silu") -> None:
        self.gate_up = gate_up  # [2 * intermediate, hidden]
        self.down = down  # [hidden, intermediate]
        self.activation = activation
        self._activate = ACTIVATIONS[activation]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same shape."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self._activate(gate) * up)
