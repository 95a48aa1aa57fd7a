"""The laid-out weights of one checkpoint: made once, kept in a file, and mapped by every later start.

It is written beside and renamed, so that another process sees a whole one or none; where it cannot be written, the
weights are laid out in memory: by the weights actor for all engines (gpu/weights_host), or by each engine for itself.
Used by gpu/load_model.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import attrs
import msgspec
import numpy as np

from gpu.kernels.laid_out_file import ALIGNMENT, MAGIC, Entry, Index, laid_out_path, read_index
from gpu.kernels.layout import FORMATS, Format, laid_out_bytes, lay_out
from gpu.kernels.scratch import open_scratch
from gpu.weights import WeightSource

__all__ = [
    "LaidOutMatrix",
    "Stack",
    "laid_out_path",
    "make_laid_out",
    "map_laid_out",
    "open_laid_out",
    "write_laid_out",
]

logger = logging.getLogger("trillm.kernels")


@attrs.frozen
class Stack:
    """Tensors of one type that are computed as one matrix."""

    kind: str
    """GGUF's name of the type: a key of layout.FORMATS."""
    parts: tuple[tuple[str, int], ...]
    """Name and rows of each tensor."""
    columns: int

    @property
    def key(self) -> str:
        return "+".join(name for name, _ in self.parts)

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.parts)


@attrs.frozen(eq=False)
class LaidOutMatrix:
    """One of them."""

    format: Format
    rows: int
    columns: int
    data: np.ndarray
    """[bytes] uint8."""


Report = Callable[[float], None]


def open_laid_out(
    path: Path | None, stacks: Sequence[Stack], source: WeightSource, lanes: int
) -> dict[str, LaidOutMatrix]:
    """All stacks by key: mapped from the file at `path`, which is made first if it is not there or not whole.

    Raises CheckpointError for tensors that cannot be read.
    """
    if path is not None and make_laid_out(path, stacks, source, lanes):
        mapped = map_laid_out(path, stacks, lanes)
        if mapped is not None:
            return mapped
    return {stack.key: _matrix(stack, _laid_out(stack, source, lanes)) for stack in stacks}


def make_laid_out(
    path: Path, stacks: Sequence[Stack], source: WeightSource, lanes: int, report: Report = lambda _: None
) -> bool:
    """Make the file unless it is there and whole; False, with a line in the log, where it cannot be written.

    Raises CheckpointError for tensors that cannot be read.
    """
    if map_laid_out(path, stacks, lanes) is not None:
        return True
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_scratch(path.parent) as scratch:
            made = scratch / path.name
            with made.open("wb") as file:
                write_laid_out(file, stacks, source, lanes, report)
                os.fsync(file.fileno())
            made.replace(path)
    except OSError as error:
        logger.warning("weights are laid out again at each start: %s: %s", path, error.strerror or error)
        return False
    return True


def _matrix(stack: Stack, data: np.ndarray) -> LaidOutMatrix:
    return LaidOutMatrix(FORMATS[stack.kind], stack.rows, stack.columns, data)


def _laid_out(stack: Stack, source: WeightSource, lanes: int) -> np.ndarray:
    raw = [source.raw(name, (rows, stack.columns)) for name, rows in stack.parts]
    data = lay_out(stack.kind, raw[0] if len(raw) == 1 else np.concatenate(raw), lanes)
    aligned = _aligned_empty(data.nbytes)
    aligned[:] = data
    return aligned


def _aligned_empty(nbytes: int) -> np.ndarray:
    """Memory that begins at a cache line."""
    spacious = np.empty(nbytes + 64, dtype=np.uint8)
    first = -spacious.ctypes.data % 64
    return spacious[first : first + nbytes]


def _has(index: Index, stack: Stack, lanes: int) -> bool:
    """Whether there are as many bytes as the kernels will read: they look at no bounds."""
    entry = index.entries.get(stack.key)
    return entry is not None and entry.nbytes == laid_out_bytes(FORMATS[stack.kind], stack.rows, stack.columns, lanes)


def map_laid_out(path: Path, stacks: Sequence[Stack], lanes: int) -> dict[str, LaidOutMatrix] | None:
    """None if the file is not there, or not the whole of what is asked for."""
    try:
        with path.open("rb") as file:
            index = read_index(file)
            if index is None or any(not _has(index, stack, lanes) for stack in stacks):
                return None
            data = np.frombuffer(mmap.mmap(file.fileno(), index.size, access=mmap.ACCESS_READ), dtype=np.uint8)
    except (OSError, ValueError):
        return None
    matrices = {}
    for stack in stacks:
        entry = index.entries[stack.key]
        matrices[stack.key] = _matrix(stack, data[entry.offset : entry.offset + entry.nbytes])
    return matrices


def write_laid_out(
    file: BinaryIO, stacks: Sequence[Stack], source: WeightSource, lanes: int, report: Report = lambda _: None
) -> int:
    """Write the whole image and flush it; its size in bytes. Raises CheckpointError, OSError."""
    entries = {}
    for done, stack in enumerate(stacks):
        data = _laid_out(stack, source, lanes)
        entries[stack.key] = Entry(file.tell(), data.nbytes)
        file.write(data.data)
        file.write(bytes(-file.tell() % ALIGNMENT))
        report((done + 1) / len(stacks))
    # The index knows the file's size, so its own length must not depend on that: blanks are valid JSON.
    room = len(msgspec.json.encode(Index(2**53, entries)))
    size = file.tell() + room + 8 + len(MAGIC)
    file.write(msgspec.json.encode(Index(size, entries)).ljust(room))
    file.write(room.to_bytes(8, "little") + MAGIC)
    file.flush()
    return size
