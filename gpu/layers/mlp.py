"""The gated feed-forward block of a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from gpu.layers.linear import Linear


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GELU's approximation by a hyperbolic tangent."""
    return F.gelu(x, approximate="tanh")


Activation = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
}
"""By their name in config.json."""


def gated(gate_up: torch.Tensor, activate: Activation) -> torch.Tensor:
    """[tokens, 2 * intermediate] to [tokens, intermediate]. gpu/compiled_parts may put another one in its place."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activate(gate) * up


class GatedMLP:
    """down(activation(gate(x)) * up(x)), with gate and up stacked into one linear."""

    def __init__(self, gate_up: Linear, down: Linear, activation: str = "silu") -> None:
        self.gate_up = gate_up  # [2 * intermediate, hidden]
        self.down = down  # [hidden, intermediate]
        self.activation = activation
        self.compute: Callable[[torch.Tensor, Activation], torch.Tensor] = gated
        self._activate = ACTIVATIONS[activation]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same shape."""
        return self.down(self.compute(self.gate_up(x), self._activate))
