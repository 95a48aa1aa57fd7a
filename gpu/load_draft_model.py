"""The served model, and the draft model beside it if the spec has one: which of both gets how much memory.

Used by gpu/torch_runner. The draft model comes first, with a share of the memory for its KV pool, so that what is then
free, or left of --kv-cache-memory-bytes, is what the served model's pool may take.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpu.draft_model import DraftModel
from gpu.draft_spec import draft_spec
from gpu.groups.groups import Groups
from gpu.kv_pool import KvPoolSize, free_bytes
from gpu.load_model import load_model, pick_device
from gpu.load_report import Report, part_of
from gpu.model import Model
from gpu.shared_weights import WeightsOffer
from protocol.errors import CheckpointError, StartError
from protocol.spec import DraftModelSpec, EngineSpec

KV_SHARE = 4
"""One part in so many of the memory for KV blocks is the draft model's: it has fewer layers and heads."""
MAX_KV_BYTES = 4 * 2**30
"""Of the draft model by default."""


def load_models(
    spec: EngineSpec,
    report: Report,
    draft_blocks: int | None = None,
    offer: WeightsOffer | None = None,
    groups: Groups | None = None,
) -> tuple[Model, KvPoolSize, DraftModel | None]:
    """Raises as gpu.load_model.load_model does, for each of the two. `draft_blocks` is how many KV blocks the draft
    model gets, where that is not to be judged by the memory. Of `groups` the leader calls this, whose own affair the
    draft model is; the others call `load_model`."""
    if not isinstance(spec.speculative, DraftModelSpec):
        return *load_model(spec, report, offer, groups), None
    beside = draft_spec(spec)
    assert beside is not None, "there is a draft model"
    beside = msgspec.structs.replace(beside, kv_cache_memory_bytes=_kv_bytes(spec))
    if draft_blocks is not None:
        beside = msgspec.structs.replace(beside, num_gpu_blocks_override=draft_blocks)
    try:
        draft, draft_size = load_model(beside, part_of(report, lambda done: done / 2), offer)
    except (CheckpointError, StartError) as error:
        raise type(error)(f"the draft model {Path(spec.speculative.checkpoint).name}: {error.message}") from error
    kv_bytes = spec.kv_cache_memory_bytes
    left = None if kv_bytes is None else kv_bytes - draft_size.num_bytes
    rest = msgspec.structs.replace(spec, kv_cache_memory_bytes=left)
    model, size = load_model(rest, part_of(report, lambda done: (1 + done) / 2), offer, groups)
    num_drafts = spec.speculative.num_speculative_tokens
    return model, size, DraftModel(draft, draft_size, num_drafts, model.vocab_size, size.max_model_len)


def _kv_bytes(spec: EngineSpec) -> int:
    """Of the draft model."""
    if spec.kv_cache_memory_bytes is not None:
        return spec.kv_cache_memory_bytes // KV_SHARE
    return min(free_bytes(pick_device(spec.device), spec.num_engines)[1] // KV_SHARE, MAX_KV_BYTES)
