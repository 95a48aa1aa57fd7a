"""How one engine's model lies over several ranks. Part of an EngineSpec; checked by the app against the model's sizes."""

from __future__ import annotations

import msgspec


class ParallelSpec(msgspec.Struct, frozen=True):
    """Sizes; the world is their product."""

    tensor: int = 1
    """Ranks that share each layer: heads, inner sizes and vocabulary are cut among them."""
    pipeline: int = 1
    """Stages, each with its share of the layers."""
    experts: bool = False
    """Whether experts are spread over the tensor ranks whole, instead of being cut among them."""

    @property
    def world(self) -> int:
        return self.tensor * self.pipeline
