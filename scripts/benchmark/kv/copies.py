"""Blocks between an engine's pool and its connector's window, as a runner copies them within a step: by as many threads
as one engine on this machine has. The copy in memory that they are held against is of one thread. New frames are as an
engine finds them: with memory, which its connector had found ahead, and not yet mapped by the engine.

Run as a module, in the environment that engines have: nothing else needs torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from actors.kv.window import Window
from gpu.kv_frames import KvFrames
from protocol.kv import KvLayout
from protocol.step import KvCopy
from scripts.benchmark.kv.child import open_child, say
from scripts.benchmark.kv.lending_process import scattered
from scripts.benchmark.kv.new_frames import NewFrames
from scripts.benchmark.kv.rates import Rate, RateRow, seconds_of, size_text

if TYPE_CHECKING:
    from gpu.kv_pool import KvPool

BLOCK_SIZE = 16
WARM_UP = 1
SECONDS = 300.0
RATIOS = [("save", "memcpy"), ("load", "memcpy")]


class Job(msgspec.Struct, frozen=True):
    checkpoint: str
    num_bytes: list[int]
    tries: int


def measure_copies(checkpoint: Path, num_bytes: Sequence[int], tries: int) -> list[RateRow]:
    """For the blocks of this model. Raises ServerFailedError."""
    job = Job(str(checkpoint), list(num_bytes), tries)
    with open_child(__name__, job, list[RateRow], SECONDS) as rows:
        return rows


def be_runner(job: Job) -> Iterator[RateRow]:
    """What is measured."""
    import torch

    from gpu.config import ModelConfig
    from gpu.kv_pool import KvPool, KvPoolSize, kv_block_bytes
    from gpu.load_model import compute_threads
    from gpu.native_model import KV_DTYPE

    config, cpu = ModelConfig.read(Path(job.checkpoint)), torch.device("cpu")
    torch.set_num_threads(compute_threads(None))
    # What each way to compute on a CPU keeps blocks in.
    for name, dtype in (("native", KV_DTYPE), ("torch", torch.float32)):
        block_bytes = kv_block_bytes(config, BLOCK_SIZE, dtype)
        most = max(1, max(job.num_bytes) // block_bytes)
        pool = KvPool(KvPoolSize(most, BLOCK_SIZE, most * BLOCK_SIZE, most * block_bytes), config, dtype, cpu)
        pool.keys.fill_(1)
        pool.values.fill_(1)
        with (
            Window(KvLayout(b"", BLOCK_SIZE, [block_bytes]), most) as window,
            KvFrames(window.described()) as frames,
            NewFrames(window) as new_frames,
        ):
            for total in job.num_bytes:
                yield _measure(name, pool, window, frames, new_frames, max(1, total // block_bytes), job.tries)


def _measure(
    name: str, pool: KvPool, window: Window, frames: KvFrames, new_frames: NewFrames, count: int, tries: int
) -> RateRow:
    from gpu.block_copies import copy_blocks

    copies = [KvCopy(block, frame) for block, frame in enumerate(scattered(frames.num_frames)[:count])]
    total = count * pool.block_bytes
    source, target = np.ones(total, np.uint8), np.ones(total, np.uint8)
    ways = {
        "memcpy": lambda: np.copyto(target, source),
        "save": lambda: copy_blocks(pool, copies, [], frames),
        "load": lambda: copy_blocks(pool, [], copies, frames),
    }
    seconds: dict[str, list[float]] = {way: [] for way in [*ways, "save, new frames"]}
    for _ in range(WARM_UP + tries):
        for way, does in ways.items():
            seconds[way].append(seconds_of(does))
        new_frames.renew()
        window.populate(0, window.num_bytes)
        with KvFrames(window.described()) as new:
            seconds["save, new frames"].append(seconds_of(lambda: copy_blocks(pool, copies, [], new)))
    title = f"{name}: {size_text(pool.block_bytes)} × {count} = {total / 1e6:.3g} MB"
    return RateRow(title, {way: Rate.of(total, times[WARM_UP:]) for way, times in seconds.items()})


if __name__ == "__main__":
    say(list(be_runner(msgspec.json.decode(sys.argv[1], type=Job))))
