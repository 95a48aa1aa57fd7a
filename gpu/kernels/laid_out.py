"""The laid-out weights of one checkpoint: made once, kept in a file, and mapped by every later start.

The file is the matrices one after the other, then a JSON index. It is written beside and renamed, so that another
process sees a whole one or none; where it cannot be written, the weights are laid out in memory at each start.
Used by gpu/load_model.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs
import msgspec
import numpy as np

from gpu.kernels.layout import FORMATS, Format, lay_out
from gpu.weights import WeightSource

VERSION = 1
"""Of the layout and the file: another one is another file."""
MAGIC = b"trillm laid-out weights\n"
ALIGNMENT = 4096

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


class _Entry(msgspec.Struct, array_like=True, frozen=True):
    offset: int
    """In the file, a multiple of ALIGNMENT."""
    nbytes: int


class _Index(msgspec.Struct, frozen=True):
    size: int
    """Of the whole file."""
    entries: dict[str, _Entry]


def laid_out_path(directory: Path, files: Sequence[Path], lanes: int) -> Path:
    """Where the laid-out form of these weight files belongs: a name for their paths, sizes and times of change."""
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return directory / f"laid-out-{VERSION}-{lanes}-{digest.hexdigest()[:16]}.bin"


def open_laid_out(
    path: Path | None, stacks: Sequence[Stack], source: WeightSource, lanes: int
) -> dict[str, LaidOutMatrix]:
    """All stacks by key: mapped from the file at `path`, which is made first if it is not there or not whole.

    Raises CheckpointError for tensors that cannot be read.
    """
    if path is not None:
        if (mapped := _mapped(path, stacks)) is not None:
            return mapped
        try:
            _write(path, stacks, source, lanes)
        except OSError as error:
            logger.warning("weights are laid out again at each start: %s: %s", path, error.strerror or error)
        else:
            if (mapped := _mapped(path, stacks)) is not None:
                return mapped
    return {stack.key: _matrix(stack, _laid_out(stack, source, lanes)) for stack in stacks}


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


def _mapped(path: Path, stacks: Sequence[Stack]) -> dict[str, LaidOutMatrix] | None:
    """None if the file is not there, or not the whole of what is asked for."""
    try:
        with path.open("rb") as file:
            data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
        if data[-len(MAGIC) :].tobytes() != MAGIC:
            return None
        end = len(data) - len(MAGIC) - 8
        length = int.from_bytes(data[end : end + 8].tobytes(), "little")
        index = msgspec.json.decode(data[end - length : end].tobytes(), type=_Index)
    except (OSError, ValueError, msgspec.DecodeError):
        return None
    if index.size != len(data) or any(stack.key not in index.entries for stack in stacks):
        return None
    matrices = {}
    for stack in stacks:
        entry = index.entries[stack.key]
        matrices[stack.key] = _matrix(stack, data[entry.offset : entry.offset + entry.nbytes])
    return matrices


def _write(path: Path, stacks: Sequence[Stack], source: WeightSource, lanes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        with made.open("wb") as file:
            entries = {}
            for stack in stacks:
                data = _laid_out(stack, source, lanes)
                entries[stack.key] = _Entry(file.tell(), data.nbytes)
                file.write(data.data)
                file.write(bytes(-file.tell() % ALIGNMENT))
            # The index knows the file's size, so its own length must not depend on that: blanks are valid JSON.
            room = len(msgspec.json.encode(_Index(2**53, entries)))
            size = file.tell() + room + 8 + len(MAGIC)
            file.write(msgspec.json.encode(_Index(size, entries)).ljust(room))
            file.write(room.to_bytes(8, "little") + MAGIC)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
