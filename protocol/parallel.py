"""How one engine's model lies over several ranks: part of an EngineSpec, held to the model's sizes by `why_not`."""

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


def why_not(parallel: ParallelSpec, heads: int, kv_heads: int, layers: int, experts: int) -> str | None:
    """Why a model of these sizes cannot lie so, naming the sizes that can; None if it can. `experts` is 0 where there
    are none."""
    if not _divides(parallel.tensor, heads, kv_heads):
        sizes = [str(size) for size in range(1, heads + 1) if _divides(size, heads, kv_heads)]
        fitting = f"only {sizes[0]} does" if len(sizes) == 1 else f"{', '.join(sizes[:-1])} and {sizes[-1]} do"
        return (
            f"the model has {heads} query and {kv_heads} KV heads: --tensor-parallel-size {parallel.tensor} "
            f"does not divide them; {fitting}"
        )
    if parallel.pipeline > layers:
        return f"--pipeline-parallel-size {parallel.pipeline} is above the model's {layers} layers"
    if parallel.experts and not experts:
        return "--enable-expert-parallel is for models with experts, and this one has none"
    return None


def _divides(size: int, heads: int, kv_heads: int) -> bool:
    """Each rank has whole heads, and those of one KV head, or of several: never parts of two."""
    return heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
