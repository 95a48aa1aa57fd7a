"""Checks that a checkpoint directory's weight files are whole before any process starts. Used by the command line.

Only headers and sizes are read: a download that was cut off is found in milliseconds, not after minutes of loading.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from protocol.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
GGUF = "gguf.json"
LENGTH_BYTES = 8
MAX_HEADER = 100_000_000
"""The format's own limit on its JSON header, in bytes."""
PICKLES = ("*.bin", "*.pth", "*.pt")


class StoredTensor(msgspec.Struct, frozen=True):
    """One tensor of a safetensors header; the offsets count from the end of the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def check_weights(directory: Path) -> None:
    """Raises CheckpointError naming the file that is missing, cut off or damaged, with expected and actual bytes."""
    if (directory / GGUF).is_file():
        _check_gguf(directory / GGUF)
    elif (directory / INDEX).is_file():
        _check_shards(directory / INDEX)
    elif (directory / SINGLE).is_file():
        _check_safetensors(directory / SINGLE)
    elif any(file for pattern in PICKLES for file in directory.glob(pattern)):
        raise CheckpointError(
            f"{directory}: only PyTorch files (.bin, .pt or .pth) are there, which can run code when they are loaded; "
            "safetensors is needed"
        )
    else:
        raise CheckpointError(f"{directory}: no weights: expected {SINGLE}, {INDEX} with its shards, or {GGUF}")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _check_gguf(path: Path) -> None:
    index = _read_object(path)
    file, size = index.get("file"), index.get("size")
    if not isinstance(file, str) or not isinstance(size, int):
        raise CheckpointError(f"{path}: file and size are missing")
    try:
        actual = Path(file).stat().st_size
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    if actual != size:
        raise CheckpointError(f"{file}: has {actual} bytes, expected {size}: it was changed after {path} was made")


def _check_shards(path: Path) -> None:
    placed = _read_object(path).get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(name, str) for name in placed.values()):
        raise CheckpointError(f"{path}: weight_map is missing, expected tensor names with their files")
    found = {}
    for shard in sorted(set(placed.values())):
        # A shard's name is a name, not a way out of the directory.
        if Path(shard).name != shard:
            raise CheckpointError(f"{path}: {shard!r} is not a plain file name")
        found[shard] = _check_safetensors(path.parent / shard)
    for tensor, shard in placed.items():
        if tensor not in found[shard]:
            raise CheckpointError(f"{path.parent / shard}: tensor {tensor} is missing, {path.name} expects it there")


def _check_safetensors(path: Path) -> set[str]:
    """The names of the file's tensors, after its length was checked against its header."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, MAX_HEADER):
                raise CheckpointError(
                    f"{path}: has {size} bytes, expected a safetensors header of {length} bytes (truncated or damaged)"
                )
            header = msgspec.json.decode(file.read(length), type=dict[str, Any])
        header.pop("__metadata__", None)
        tensors = msgspec.convert(header, dict[str, StoredTensor])
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: the file is missing") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: its safetensors header is damaged: {error}") from error
    expected = LENGTH_BYTES + length + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    if size != expected:
        raise CheckpointError(f"{path}: has {size} bytes, expected {expected} (truncated or damaged)")
    return set(tensors)
