"""What tells one adapter from another: its name and the bytes of its files. The app makes the id when it takes an
adapter in, and an engine makes it again when it reads the files, so that nothing is computed with files that have been
changed since.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path

from protocol.errors import BadRequestError
from protocol.lora import LoraId

FILES = ("adapter_config.json", "adapter_model.safetensors")
"""Of a PEFT checkpoint directory."""
MAX_BYTES = (2**20, 16 * 2**30)
"""Of each. Nothing larger is read to its end."""
_PIECE = 2**20


def lora_id_of(name: str, directory: Path) -> LoraId:
    """The same for the same name and the same content, wherever it lies; never 0. Reads everything, which takes about
    half a second for a gigabyte. Raises BadRequestError for files that are missing, no regular files, or too large; the
    message names the file, not where it was looked for."""
    digest = sha256(name.encode())
    for file, most in zip(FILES, MAX_BYTES, strict=True):
        content = sha256()
        with os.fdopen(_open(directory / file, most), "rb") as opened:
            while piece := opened.read(_PIECE):
                content.update(piece)
        digest.update(content.digest())
    return LoraId(int.from_bytes(digest.digest()[:8]) >> 1 or 1)


def _open(path: Path, most: int) -> int:
    """A descriptor of a regular file. (A pipe would keep whoever opens it waiting for a writer, but for O_NONBLOCK.)"""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise BadRequestError(f"the adapter has no {path.name} that can be read") from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= most:
        return descriptor
    os.close(descriptor)
    if stat.S_ISREG(status.st_mode):
        raise BadRequestError(f"the adapter's {path.name} has {status.st_size} bytes; at most {most} are read")
    raise BadRequestError(f"the adapter's {path.name} is no file")
