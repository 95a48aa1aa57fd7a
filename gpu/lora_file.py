"""The tensors of an adapter as they lie in adapter_model.safetensors. Imports neither numpy nor safetensors: that maps
a file into memory, and somebody who cuts it off meanwhile would end the process.

Used by gpu/lora_checkpoint and gpu/fake_runner.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Annotated

import msgspec

from gpu.lora_config import shortened
from protocol.errors import BadRequestError
from protocol.lora_files import WEIGHTS, open_lora_file

MAX_HEADER_BYTES = 16 << 20
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""Of the types that adapters are saved in."""


class TensorEntry(msgspec.Struct, frozen=True):
    """What the file's header says of a tensor."""

    dtype: str
    shape: Annotated[list[int], msgspec.Meta(max_length=8)]
    """Bounded, since the product of a million sizes takes minutes."""
    data_offsets: tuple[int, int]
    """In bytes from the end of the header: where it begins, and where it ends."""


class LoraFile:
    """An open adapter_model.safetensors whose header has been read."""

    def __init__(self, file: IO[bytes], entries: Mapping[str, TensorEntry], first_byte: int) -> None:
        self.entries = entries
        self._file = file
        self._first_byte = first_byte

    @classmethod
    def open(cls, directory: Path) -> LoraFile:
        """Raises BadRequestError for a file that is missing, or no whole safetensors file."""
        file = open_lora_file(directory, WEIGHTS)
        try:
            entries, first_byte = _read_header(file)
        except BaseException:
            file.close()
            raise
        return cls(file, entries, first_byte)

    def read(self, name: str) -> bytes:
        """The tensor's bytes. Raises BadRequestError if they are not all there."""
        first, end = self.entries[name].data_offsets
        self._file.seek(self._first_byte + first)
        content = self._file.read(end - first)
        if len(content) != end - first:
            raise BadRequestError(f"{WEIGHTS} ends within tensor {shortened(name)}")
        return content

    def close(self) -> None:
        self._file.close()


def _read_header(file: IO[bytes]) -> tuple[dict[str, TensorEntry], int]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        raise BadRequestError(f"{WEIGHTS} is no safetensors file")
    content = file.read(length)
    try:
        header = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        # Where a name is there twice, msgspec keeps the last.
        json.loads(content, object_pairs_hook=_check_names)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequestError(f"{WEIGHTS} is no safetensors file: {error}") from error
    except ValueError as error:  # a number of more than 4300 digits, say
        raise BadRequestError(f"{WEIGHTS} is no safetensors file: {shortened(str(error))}") from error
    header.pop("__metadata__", None)
    entries = {name: _entry(name, entry) for name, entry in header.items()}
    for name, entry in entries.items():
        _check(name, entry, size - 8 - length)
    return entries, 8 + length


def _check_names(pairs: list[tuple[str, object]]) -> None:
    """Of the header, and of each entry in it."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise BadRequestError(f"{WEIGHTS} is no safetensors file: {shortened(name)} is there twice in its header")
        seen.add(name)


def _entry(name: str, content: msgspec.Raw) -> TensorEntry:
    try:
        return msgspec.json.decode(content, type=TensorEntry)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequestError(f"{WEIGHTS} is no safetensors file: tensor {shortened(name)}: {error}") from error


def _check(name: str, entry: TensorEntry, size: int) -> None:
    if entry.dtype not in ITEM_BYTES:
        raise BadRequestError(
            f"{WEIGHTS}: tensor {shortened(name)} has type {shortened(entry.dtype)}, none of {', '.join(ITEM_BYTES)}"
        )
    first, end = entry.data_offsets
    expected = math.prod(entry.shape) * ITEM_BYTES[entry.dtype]
    if min(entry.shape, default=0) < 0 or not 0 <= first <= end <= size or end - first != expected:
        raise BadRequestError(
            f"{WEIGHTS}: tensor {shortened(name)} of type {entry.dtype} and shape {shortened(entry.shape)} is said to "
            f"lie at bytes {shortened(first)} to {shortened(end)} of {size}"
        )
