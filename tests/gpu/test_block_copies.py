"""Blocks leave a pool and come back as they were, by the host's way and by that of a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from actors.kv.window import Window
from gpu import block_copies
from gpu.block_copies import copy_blocks
from gpu.kv_frames import KvFrames
from gpu.kv_pool import KvPool, KvPoolSize
from gpu.model_shape import ModelShape
from protocol.kv import KvLayout
from protocol.step import KvCopy

CPU = torch.device("cpu")
SHAPE = ModelShape(
    vocab_size=64,
    num_layers=3,
    num_kv_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    windows=(None,) * 3,
    dtype=None,
)
TYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn]
WAYS = ["direct", "staged"]


class DevicePool(KvPool):
    """Says that it is not on the host."""

    is_on_host = False


def a_pool(dtype: torch.dtype, way: str = "direct") -> KvPool:
    made = KvPool if way == "direct" else DevicePool
    pool = made(KvPoolSize(7, 4, 28, 0), SHAPE, dtype, CPU, torch.float32)
    for half in pool.bytes_by_block():
        half.copy_(torch.randint(256, half.shape, dtype=torch.uint8))
    return pool


@contextmanager
def frames_of(pool: KvPool, count: int = 8) -> Iterator[tuple[Window, KvFrames]]:
    """Of the second of three ranks."""
    layout = KvLayout(b"", 4, [100, pool.block_bytes, 4])
    with Window(layout, count) as window, KvFrames(window.described(), 1) as frames:
        yield window, frames


def content(pool: KvPool, block: int) -> bytes:
    keys, values = pool.bytes_by_block()
    return keys[:, block].contiguous().numpy().tobytes() + values[:, block].contiguous().numpy().tobytes()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", TYPES)
def test_blocks_come_back_to_other_places_as_they_were(dtype, way, monkeypatch):
    monkeypatch.setattr(block_copies, "STAGED_BYTES", 5000)  # one or a few blocks at a time
    pool = a_pool(dtype, way)
    before = [content(pool, block) for block in range(7)]
    with frames_of(pool) as (window, frames):
        saves = [KvCopy(block, frame) for block, frame in ((4, 0), (1, 7), (6, 3), (0, 2))]
        copy_blocks(pool, saves, [], frames)
        assert [content(pool, block) for block in range(7)] == before
        for copy in saves:
            assert frames.piece(copy.frame).tobytes() == before[copy.block]
            assert not any(window.frame(copy.frame)[:128])  # another rank's
        assert not any(window.frame(1))
        other = a_pool(dtype, way)
        kept = content(other, 2)
        loads = [KvCopy(block, frame) for block, frame in ((5, 0), (0, 7), (3, 3), (4, 2))]
        copy_blocks(other, [], loads, frames)
        assert [content(other, copy.block) for copy in loads] == [before[block] for block in (4, 1, 6, 0)]
        assert content(other, 2) == kept


@pytest.mark.parametrize("way", WAYS)
def test_a_block_that_is_saved_and_loaded_over_is_saved_as_it_was(way):
    pool = a_pool(torch.float32, way)
    before = [content(pool, block) for block in range(7)]
    with frames_of(pool) as (_, frames):
        copy_blocks(pool, [KvCopy(1, 0), KvCopy(2, 1)], [KvCopy(1, 1), KvCopy(5, 0)], frames)
        assert frames.piece(0).tobytes() == before[1]
        assert content(pool, 1) == before[2]
        assert content(pool, 5) == before[1]


def test_both_ways_write_the_same_bytes():
    direct, staged = a_pool(torch.bfloat16), a_pool(torch.bfloat16, "staged")
    for into, source in zip(staged.bytes_by_block(), direct.bytes_by_block(), strict=True):
        into.copy_(source)
    saves = [KvCopy(block, block) for block in range(7)]
    with frames_of(direct) as (one, frames), frames_of(staged) as (other, frames_of_staged):
        copy_blocks(direct, saves, [], frames)
        copy_blocks(staged, saves, [], frames_of_staged)
        for frame in range(8):
            assert one.frame(frame) == other.frame(frame)


def test_a_pool_knows_how_large_and_of_what_its_blocks_are():
    assert a_pool(torch.float32).block_bytes == 2 * 3 * 4 * 2 * 8 * 4
    assert a_pool(torch.float32).block_kind == "float32 3x4x2x8"
    assert a_pool(torch.float8_e5m2).block_kind == "float8_e5m2 3x4x2x8"


@pytest.mark.parametrize("way", WAYS)
def test_frames_that_are_to_be_written_have_their_pages_mapped_before_and_others_have_not(way, monkeypatch):
    asked = []
    monkeypatch.setattr(KvFrames, "map_pages", lambda _, frame: asked.append(frame))
    pool = a_pool(torch.float32, way)
    with frames_of(pool) as (_, frames):
        copy_blocks(pool, [KvCopy(1, 3), KvCopy(2, 5)], [KvCopy(4, 6)], frames)
    assert asked == [3, 5]
