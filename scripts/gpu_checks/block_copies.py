"""KV blocks on their way through frames: to the last bit what they were, also while the device is at work.

What is queued before a save has to be in the frames, and what is queued behind a load has to find the blocks. How fast
they go is in the remarks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from actors.kv.window import Window
from gpu.block_copies import STAGED_BYTES, copy_blocks
from gpu.kv_frames import KvFrames
from gpu.kv_pool import KvPool, KvPoolSize, kv_block_bytes
from protocol.kv import KvLayout
from protocol.step import KvCopy
from scripts.gpu_checks.numerics import Finding
from scripts.gpu_checks.random_model import BLOCK_SIZE, Shape
from scripts.gpu_checks.roofline import synchronise

STAGED_TIMES = 2.5
"""So many times as many blocks as go through pinned memory together."""
HOST_BLOCKS = 64
"""Where none do."""
WORK = 2048
"""Rows and columns of the matrices that keep the device at work."""
PRODUCTS = 30


def check_block_copies(shape: Shape, dtype: torch.dtype, device: torch.device) -> Iterator[Finding]:
    config = shape.config()
    block_bytes = kv_block_bytes(config, BLOCK_SIZE, dtype)
    count = HOST_BLOCKS if device.type == "cpu" else int(STAGED_TIMES * STAGED_BYTES / block_bytes) + 1
    # The first half is saved, in a mixed order, and comes back into the second, the other way round.
    pool = KvPool(KvPoolSize(2 * count, BLOCK_SIZE, BLOCK_SIZE, 0), config, dtype, device)
    halves = pool.bytes_by_block()
    random = torch.Generator().manual_seed(3)
    content = torch.randint(256, (2, shape.layers, count, halves[0].shape[2]), generator=random, dtype=torch.uint8)
    order = torch.randperm(count, generator=random).tolist()
    saves = [KvCopy(block, frame) for block, frame in enumerate(order)]
    loads = [KvCopy(2 * count - 1 - block, frame) for block, frame in enumerate(order)]
    new = content.to(device)
    with Window(KvLayout(b"", BLOCK_SIZE, [block_bytes]), count) as window, KvFrames(window.described()) as frames:
        _keep_busy(device)
        for half, values in zip(halves, new, strict=True):
            half[:, :count] = values
        copy_blocks(pool, saves, [], frames)
        there = torch.stack([_piece(frames, save.frame, shape.layers) for save in saves], dim=2)
        seconds = _seconds(pool, saves, [], frames, device)
        yield Finding("blocks in frames", _differing(there, content), 0.0, _rate(count * block_bytes, seconds))
        _keep_busy(device)
        copy_blocks(pool, [], loads, frames)
        back = torch.stack([half[:, count:].flip(1) for half in halves]).cpu()
        seconds = _seconds(pool, [], loads, frames, device)
        yield Finding("… and in other blocks", _differing(back, content), 0.0, _rate(count * block_bytes, seconds))
        kept = torch.stack([half[:, :count] for half in halves]).cpu()
        yield Finding("… and where they were", _differing(kept, content), 0.0)


def _keep_busy(device: torch.device) -> None:
    """Queue work of some milliseconds, so that what is done too early is seen."""
    if device.type == "cuda":
        x = torch.ones(WORK, WORK, device=device)
        for _ in range(PRODUCTS):
            x = x @ x / WORK


def _piece(frames: KvFrames, frame: int, layers: int) -> torch.Tensor:
    """[2, layers, bytes], as the host sees it now."""
    return torch.frombuffer(bytearray(frames.piece(frame)), dtype=torch.uint8).view(2, layers, -1)


def _differing(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The share of bytes."""
    return float((found != expected).double().mean().item())


def _seconds(pool: KvPool, saves: list[KvCopy], loads: list[KvCopy], frames: KvFrames, device: torch.device) -> float:
    """Nothing else is queued."""
    synchronise(device)
    before = time.perf_counter()
    copy_blocks(pool, saves, loads, frames)
    synchronise(device)
    return time.perf_counter() - before


def _rate(num_bytes: int, seconds: float) -> str:
    return f"{num_bytes / 1e6:.0f} MB, {num_bytes / seconds / 1e9:.2f} GB/s"
