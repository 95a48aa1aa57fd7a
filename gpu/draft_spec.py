"""What the draft model beside a served one is loaded with, if the spec has one.

Used by gpu/load_draft_model and gpu/weights_host, which must mean the same model. Imports no torch, as the latter.
"""

from __future__ import annotations

import msgspec

from protocol.parallel import ParallelSpec
from protocol.spec import DraftModelSpec, EngineSpec


def draft_spec(spec: EngineSpec) -> EngineSpec | None:
    """It goes as far as it can, to no particular bits and without adapters: what it says is checked. How much memory it
    gets for KV blocks is left as it is for the served model; if a number of blocks was asked for, it has as many."""
    if not isinstance(spec.speculative, DraftModelSpec):
        return None
    return msgspec.structs.replace(
        spec,
        checkpoint=spec.speculative.checkpoint,
        speculative=None,
        max_model_len=None,
        quantization=None,
        batch_invariant=False,
        kv_cache_dtype="auto",
        max_loras=0,
        parallel=ParallelSpec(),
        num_hosts=1,
    )
