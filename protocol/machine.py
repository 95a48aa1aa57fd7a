"""What is found out about a machine where torch is loaded, for who does not load it: `trillm check` asks gpu/probe.

Not on any link: JSON, on stdin and stdout of a process of its own.
"""

from __future__ import annotations

import msgspec

from protocol.spec import EngineSpec


class ProbeAsked(msgspec.Struct, frozen=True):
    cache_directory: str
    spec: EngineSpec | None
    """With a checkpoint that lies on this machine: would it fit?"""


class Card(msgspec.Struct, frozen=True):
    """A GPU that torch sees."""

    name: str
    total_bytes: int
    free_bytes: int
    capability: str
    """As "9.0"."""


class Kernels(msgspec.Struct, frozen=True):
    """The CPU kernels on this machine."""

    is_built: bool
    compiler: str
    """"" without one."""
    trouble: str
    """Why they cannot be built; "" if they can."""


class ModelFit(msgspec.Struct, frozen=True):
    """How a model would lie in the memory there is, of each engine (and of each of its ranks)."""

    architecture: str
    computed_by: str
    num_parameters: int
    weights_bytes: int
    """As they are computed with."""
    free_bytes: int
    """Before the weights."""
    kv_bytes: int
    """Of the KV pool; 0 if nothing is left for one."""
    kv_bytes_per_token: int
    num_tokens: int
    """That the pool holds."""
    max_model_len: int
    """Of one sequence, with the flags as they are."""
    limit: int
    """The model's own."""
    on_card: bool
    needs_laying_out: bool = False
    """The CPU kernels compute it, and its weights will be kept a second time, as they take them."""


class Probed(msgspec.Struct, frozen=True):
    torch: str
    """Its version."""
    cuda: str
    """That it is built for; "" if for none."""
    cards: list[Card]
    kernels: Kernels
    fit: ModelFit | None = None
    trouble: str = ""
    """Why the model could not be loaded, in a sentence."""
    is_unknown: bool = False
    """It is of an architecture that is not ours: transformers' code may compute it."""
