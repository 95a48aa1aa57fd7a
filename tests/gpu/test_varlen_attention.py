"""Attention by variable-length calls gives what the reference gives, in mixed batches, windows and half-full blocks."""

from __future__ import annotations

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.varlen import varlen_attn

from gpu.attention_backend import GatherBackend
from gpu.kv_pool import KvPool, KvPoolSize
from gpu.model_shape import ModelShape
from gpu.varlen_attention import KvAccess, VarlenBackend, VarlenFunction
from gpu.varlen_probe import AttentionShape, why_not
from protocol.ids import Slot
from protocol.step import Row
from scripts.gpu_checks.without_gpu import varlen_attention

CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
SHAPE = AttentionShape(HEADS, KV_HEADS, HEAD_DIM, 4, (None, 3))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)  # the tensors are tiny, and threads would wait for each other


def make_pool(num_blocks: int, block_size: int) -> KvPool:
    shape = ModelShape(
        vocab_size=1,
        num_layers=2,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=1,
        windows=(None,),
        dtype=None,
    )
    pool = KvPool(KvPoolSize(num_blocks, block_size, 1, 0), shape, torch.float32, CPU)
    generator = torch.Generator().manual_seed(0)
    pool.keys.copy_(torch.randn(pool.keys.shape, generator=generator))
    pool.values.copy_(torch.randn(pool.values.shape, generator=generator))
    return pool


@st.composite
def plans(draw):
    block_size = draw(st.sampled_from([1, 4, 16]))
    spans = draw(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 1, 1, 2, 5, 17])), min_size=1, max_size=6))
    needed = [-(-(start + count) // block_size) for start, count in spans]
    free = draw(st.permutations(range(sum(needed))))
    rows = []
    for index, ((start, count), blocks) in enumerate(zip(spans, needed, strict=True)):
        rows.append(Row(Slot(index), start, [index] * count, list(free[:blocks]), False))
        free = free[blocks:]
    return rows, block_size, sum(needed)


@settings(max_examples=40)
@given(plans(), st.sampled_from(list(KvAccess)), st.sampled_from([None, 1, 4, 7]), st.sampled_from([None, 0.3]))
def test_every_batch_is_attended_as_by_the_reference(plan, access, window, scale):
    rows, block_size, num_blocks = plan
    pool = make_pool(num_blocks, block_size)
    reference = GatherBackend([window], block_size, torch.float32, CPU).batch(rows)
    batch = VarlenBackend(varlen_attention, access, [window], block_size, CPU).batch(rows)
    assert torch.equal(batch.token_ids, reference.token_ids)
    assert torch.equal(batch.positions, reference.positions)
    assert torch.equal(batch.begun_blocks, reference.begun_blocks)
    assert batch.first_token == reference.first_token
    ours, theirs = batch.attention[window], reference.attention[window]
    assert torch.equal(ours.slot_mapping, theirs.slot_mapping)
    queries = torch.randn(len(batch.token_ids), HEADS, HEAD_DIM)
    expected = theirs.attend(queries, 1, pool, scale, None)
    torch.testing.assert_close(ours.attend(queries, 1, pool, scale, None), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("stand_in", [varlen_attention, VarlenFunction.__call__])
def test_the_stand_in_is_called_as_torch_s_own(stand_in):
    theirs = inspect.signature(varlen_attn).parameters
    for name, parameter in inspect.signature(stand_in).parameters.items():
        if name != "self":
            assert theirs[name].kind == parameter.kind


@pytest.mark.parametrize("access", KvAccess)
def test_the_probe_takes_what_is_right(access):
    assert why_not(varlen_attention, access, SHAPE, torch.float32, CPU) is None
    assert why_not(varlen_attention, access, SHAPE, torch.bfloat16, CPU) is None


def test_the_probe_refuses_what_raises_and_what_is_wrong():
    def without_pages(*args, block_table, **kwargs):
        if block_table is not None:
            raise RuntimeError("block tables need another implementation\nat line 1")
        return varlen_attention(*args, block_table=None, **kwargs)

    def one_key_too_many(*args, window_size, **kwargs):
        left, right = window_size
        return varlen_attention(*args, window_size=(left + 1 if left >= 0 else left, right), **kwargs)

    assert why_not(without_pages, KvAccess.PAGED, SHAPE, torch.bfloat16, CPU) == (
        "block tables need another implementation"
    )
    assert why_not(without_pages, KvAccess.GATHERED, SHAPE, torch.bfloat16, CPU) is None
    reason = why_not(one_key_too_many, KvAccess.PAGED, SHAPE, torch.bfloat16, CPU)
    assert "window 3" in reason
    assert "reference" in reason
