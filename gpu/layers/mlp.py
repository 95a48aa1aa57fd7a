"""The gated feed-forward block of a layer."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
import torch.nn.functional as F

from gpu.layers.linear import Linear


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GELU's approximation by a hyperbolic tangent."""
    return F.gelu(x, approximate="tanh")


QUICK_GELU = 1.702


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU's approximation by a sigmoid."""
    return x * torch.sigmoid(QUICK_GELU * x)


Activation = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
}
"""By their name in config.json."""


def gated(gate_up: torch.Tensor, activate: Activation) -> torch.Tensor:
    """[tokens, 2 * intermediate] to [tokens, intermediate]. gpu/compiled_parts may put another one in its place."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activate(gate) * up


Gate = Callable[[torch.Tensor, Activation], torch.Tensor]


@attrs.frozen
class ClampedGate:
    """As `gated`, with both halves held to a limit, and 1 added to what is gated."""

    limit: float

    def __call__(self, gate_up: torch.Tensor, activate: Activation) -> torch.Tensor:
        """[tokens, 2 * intermediate] to [tokens, intermediate]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return activate(gate.clamp(max=self.limit)) * (up.clamp(-self.limit, self.limit) + 1.0)


class GatedMLP:
    """down(activation(gate(x)) * up(x)), with gate and up stacked into one linear."""

    def __init__(self, gate_up: Linear, down: Linear, activation: str = "silu", gate: Gate = gated) -> None:
        self.gate_up = gate_up  # [2 * intermediate, hidden]
        self.down = down  # [hidden, intermediate]
        self.activation = activation
        self.compute = gate
        self._activate = ACTIVATIONS[activation]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same shape."""
        return self.down(self.compute(self.gate_up(x), self._activate))
