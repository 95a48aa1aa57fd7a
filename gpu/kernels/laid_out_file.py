"""The file of laid-out weights: its name, and whether it is whole. Imports neither torch nor numpy.

The matrices one after the other, then a JSON index, its length and MAGIC. Used by gpu/kernels/laid_out, which makes and
maps it, and by gpu/weights_host, which only has to know that it is there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from gpu.weight_files import GGUF_INDEX

VERSION = 1
"""Of the layout and the file: another one is another file."""
MAGIC = b"trillm laid-out weights\n"
ALIGNMENT = 4096


class Entry(msgspec.Struct, array_like=True, frozen=True):
    offset: int
    """In the file, a multiple of ALIGNMENT."""
    nbytes: int


class Index(msgspec.Struct, frozen=True):
    size: int
    """Of the whole file."""
    entries: dict[str, Entry]


def laid_out_directory(checkpoint: Path, cache_directory: str | None) -> Path | None:
    """Where the file of this checkpoint is kept; None if it is not."""
    if (checkpoint / GGUF_INDEX).exists():  # a directory of our own
        return checkpoint
    return None if cache_directory is None else Path(cache_directory) / "laid-out"


def laid_out_path(directory: Path, files: Sequence[Path], lanes: int) -> Path:
    """Where the laid-out form of these weight files belongs: a name for their paths, sizes and times of change."""
    return directory / f"laid-out-{VERSION}-{lanes}-{files_digest(files)}.bin"


def files_digest(files: Sequence[Path]) -> str:
    """Of their paths, sizes and times of change. Raises OSError."""
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        digest.update(f"{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def read_index(file: BinaryIO) -> Index | None:
    """None if this is not the whole of such a file. Raises OSError."""
    size = file.seek(0, os.SEEK_END)
    if size < len(MAGIC) + 8:
        return None
    file.seek(size - len(MAGIC) - 8)
    length, magic = int.from_bytes(file.read(8), "little"), file.read()
    start = size - len(MAGIC) - 8 - length
    if magic != MAGIC or start < 0:
        return None
    file.seek(start)
    try:
        index = msgspec.json.decode(file.read(length), type=Index)
    except msgspec.DecodeError:
        return None
    entries = index.entries.values()
    is_inside = all(entry.offset >= 0 and 0 < entry.nbytes <= start - entry.offset for entry in entries)
    return index if index.size == size and is_inside else None
