"""The spec of a draft model: the served model's, without what was asked of that one alone."""

from __future__ import annotations

import msgspec

from gpu.draft_spec import draft_spec
from protocol.ids import EngineIndex, Epoch
from protocol.parallel import ParallelSpec
from protocol.spec import DraftModelSpec, EngineSpec

SPEC = EngineSpec(EngineIndex(0), Epoch(1), "", {}, "/served", dtype="int8", max_num_seqs=3, kv_cache_memory_bytes=5)


def test_without_a_draft_model_there_is_none():
    assert draft_spec(SPEC) is None


def test_what_was_asked_of_the_served_model_alone_is_not_asked_of_the_draft_model():
    served = msgspec.structs.replace(
        SPEC,
        speculative=DraftModelSpec(2, "/draft"),
        max_model_len=7,
        quantization="fp8",
        batch_invariant=True,
        kv_cache_dtype="fp8",
        parallel=ParallelSpec(tensor=3),
    )
    assert draft_spec(served) == msgspec.structs.replace(SPEC, checkpoint="/draft")
