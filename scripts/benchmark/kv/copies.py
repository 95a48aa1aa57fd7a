"""Blocks between an engine's pool and its connector's window, as a runner copies them within a step: by as many threads
as one engine on this machine has. The copy in memory that they are held against is of one thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from actors.kv.window import Window
from gpu.block_copies import copy_blocks
from gpu.config import ModelConfig
from gpu.kv_frames import KvFrames
from gpu.kv_pool import KvPool, KvPoolSize, kv_block_bytes
from gpu.load_model import compute_threads
from gpu.native_model import KV_DTYPE
from protocol.kv import KvLayout
from protocol.step import KvCopy
from scripts.benchmark.kv.lending_process import scattered
from scripts.benchmark.kv.rates import Rate, RateRow, seconds_of, size_text

BLOCK_SIZE = 16
WARM_UP = 1
RATIOS = (("save", "memcpy"), ("load", "memcpy"))
POOLS = {"native": KV_DTYPE, "torch": torch.float32}
"""What each way to compute on a CPU keeps blocks in."""


def measure_copies(checkpoint: Path, num_bytes: Sequence[int], tries: int) -> Iterator[RateRow]:
    """For the blocks of this model."""
    config = ModelConfig.read(checkpoint)
    torch.set_num_threads(compute_threads(None))
    for name, dtype in POOLS.items():
        block_bytes = kv_block_bytes(config, BLOCK_SIZE, dtype)
        most = max(1, max(num_bytes) // block_bytes)
        size = KvPoolSize(most, BLOCK_SIZE, most * BLOCK_SIZE, most * block_bytes)
        pool = KvPool(size, config, dtype, torch.device("cpu"))
        pool.keys.fill_(1)
        pool.values.fill_(1)
        with (
            Window(KvLayout(b"", BLOCK_SIZE, [block_bytes]), most) as window,
            KvFrames(window.described()) as frames,
        ):
            for total in num_bytes:
                yield _measure(name, pool, frames, max(1, total // block_bytes), tries)


def _measure(name: str, pool: KvPool, frames: KvFrames, count: int, tries: int) -> RateRow:
    copies = [KvCopy(block, frame) for block, frame in enumerate(scattered(frames.num_frames)[:count])]
    total = count * pool.block_bytes
    source, target = np.ones(total, np.uint8), np.ones(total, np.uint8)
    ways = {
        "memcpy": lambda: np.copyto(target, source),
        "save": lambda: copy_blocks(pool, copies, [], frames),
        "load": lambda: copy_blocks(pool, [], copies, frames),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(WARM_UP + tries):
        for way, does in ways.items():
            seconds[way].append(seconds_of(does))
    title = f"{name}: {size_text(pool.block_bytes)} × {count} = {total / 1e6:.3g} MB"
    return RateRow(title, {way: Rate.of(total, times[WARM_UP:]) for way, times in seconds.items()})
