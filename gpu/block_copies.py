"""Whole KV blocks between a pool and a connector's frames: the keys of all layers, then their values, as the pool has
them. Used by the models.

Measured on a CPU, with blocks of 360 KiB: block by block goes at the speed of memory; layer by layer, or all at once
by their indices, takes two to ten times as long. From a GPU they come through pinned memory, some blocks at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from gpu.kv_frames import KvFrames
from gpu.kv_pool import KvPool
from protocol.step import KvCopy

STAGED_BYTES = 32 * 2**20
"""Of pinned memory, that blocks go through together; at least one does."""


def copy_blocks(pool: KvPool, saves: Sequence[KvCopy], loads: Sequence[KvCopy], frames: KvFrames) -> None:
    """First all saves, then all loads; when it returns, the frames are written and read. They are of this pool's
    layout."""
    for copy in saves:
        frames.map_pages(copy.frame)
    layers = pool.bytes_by_block()
    pieces = _pieces(frames, len(layers[0]))
    if pool.is_on_host:
        _save_directly(layers, pieces, saves)
        _load_directly(layers, pieces, loads)
    else:
        for some in _staged(saves, frames.piece_bytes):
            save_staged(layers, pieces, some)
        for some in _staged(loads, frames.piece_bytes):
            load_staged(layers, pieces, some)


Halves = tuple[torch.Tensor, torch.Tensor]
"""Keys and values, [layers, num_blocks, bytes] uint8 each: the pool's memory."""


def _pieces(frames: KvFrames, num_layers: int) -> torch.Tensor:
    """The window's memory, [num_frames, 2, layers, bytes] uint8."""
    whole = torch.frombuffer(frames.memory, dtype=torch.uint8).view(frames.num_frames, frames.frame_bytes)
    mine = whole[:, frames.piece_offset : frames.piece_offset + frames.piece_bytes]
    return mine.unflatten(1, (2, num_layers, -1))


def _save_directly(layers: Halves, pieces: torch.Tensor, saves: Sequence[KvCopy]) -> None:
    for copy in saves:
        for into, half in zip(pieces[copy.frame], layers, strict=True):
            into.copy_(half[:, copy.block])


def _load_directly(layers: Halves, pieces: torch.Tensor, loads: Sequence[KvCopy]) -> None:
    for copy in loads:
        for half, source in zip(layers, pieces[copy.frame], strict=True):
            half[:, copy.block].copy_(source)


def save_staged(layers: Halves, pieces: torch.Tensor, saves: Sequence[KvCopy]) -> None:
    """Waits for the device: what was queued before is in these blocks."""
    blocks, staging = _stage(layers, pieces, saves)
    for half, source in enumerate(layers):
        staging[:, half].copy_(source.index_select(1, blocks).transpose(0, 1))
    for copy, staged in zip(saves, staging, strict=True):
        pieces[copy.frame].copy_(staged)


def load_staged(layers: Halves, pieces: torch.Tensor, loads: Sequence[KvCopy]) -> None:
    """What is queued afterwards finds these blocks."""
    blocks, staging = _stage(layers, pieces, loads)
    for copy, staged in zip(loads, staging, strict=True):
        staged.copy_(pieces[copy.frame])
    there = staging.to(layers[0].device)
    for half, into in enumerate(layers):
        into.index_copy_(1, blocks, there[:, half].transpose(0, 1))


def _stage(layers: Halves, pieces: torch.Tensor, copies: Sequence[KvCopy]) -> tuple[torch.Tensor, torch.Tensor]:
    """The blocks' numbers [copies] on the device, and memory of the host [copies, 2, layers, bytes]."""
    device = layers[0].device
    staging = torch.empty((len(copies), *pieces.shape[1:]), dtype=torch.uint8, pin_memory=device.type == "cuda")
    return torch.tensor([copy.block for copy in copies], device=device), staging


def _staged(copies: Sequence[KvCopy], piece_bytes: int) -> Iterator[Sequence[KvCopy]]:
    count = max(1, STAGED_BYTES // piece_bytes)
    return (copies[first : first + count] for first in range(0, len(copies), count))
