"""The files of an adapter, and what tells one from another: its name and the bytes of these. The app makes the id when
it takes an adapter in, and an engine makes it again when it has read the files, so that nothing is computed with files
that have been changed since.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import IO

from protocol.errors import BadRequestError
from protocol.lora import LoraId

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Of a PEFT checkpoint directory."""
MAX_BYTES = {CONFIG: 2**20, WEIGHTS: 16 * 2**30}
"""Of each. Nothing larger is opened."""
_PIECE = 2**20


def lora_id_of(name: str, directory: Path) -> LoraId:
    """The same for the same name and the same content, wherever it lies; never 0. Reads everything, which takes about
    half a second for a gigabyte. Raises BadRequestError as `open_lora_file` does."""
    digest = sha256(name.encode())
    for file in MAX_BYTES:
        content = sha256()
        with open_lora_file(directory, file) as opened:
            while piece := opened.read(_PIECE):
                content.update(piece)
        digest.update(content.digest())
    return LoraId(int.from_bytes(digest.digest()[:8]) >> 1 or 1)


def open_lora_file(directory: Path, file: str) -> IO[bytes]:
    """One of MAX_BYTES, to read. Raises BadRequestError for one that is missing, no regular file, or too large; the
    message names the file, not where it was looked for."""
    try:
        # A pipe would keep whoever opens it waiting for a writer, but for O_NONBLOCK.
        descriptor = os.open(directory / file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # the latter for a path with a null byte
        raise BadRequestError(f"the adapter has no {file} that can be read") from error
    status, most = os.fstat(descriptor), MAX_BYTES[file]
    if stat.S_ISREG(status.st_mode) and status.st_size <= most:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISREG(status.st_mode):
        raise BadRequestError(f"the adapter's {file} has {status.st_size} bytes; at most {most} are read")
    raise BadRequestError(f"the adapter's {file} is no file")
