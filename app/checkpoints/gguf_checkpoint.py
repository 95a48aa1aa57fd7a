"""Makes a checkpoint directory of a .gguf file, once, in the user's cache. Used by resolve.

The directory has config.json, generation_config.json, tokenizer.json, tokenizer_config.json and gguf.json, and if the
file says how its embeddings are pooled, modules.json with what belongs to it; the weights stay in the .gguf file, and
gguf.json says where each tensor lies in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import msgspec

from protocol.errors import CheckpointError

Report = Callable[[str, int, int], None]
"""What is being done, how many bytes are done, of how many."""

VERSION = 1
"""Of gguf.json's layout, which gpu/gguf_weights reads."""
CONVERSION = 2
"""Raised whenever the conversion gives something else for the same file, so that old results are not used."""
INDEX = "gguf.json"


def open_gguf(path: Path, cache_dir: Path, report: Report) -> Path:
    """The checkpoint directory of a .gguf file, made if the cache has none for this path, size and time of change.

    Raises CheckpointError for a file that cannot be read or served, and for a cache that cannot be written.
    """
    path = path.resolve()
    try:
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    key = f"{CONVERSION}\0{path}\0{status.st_size}\0{status.st_mtime_ns}"
    directory = (
        cache_dir / "gguf" / f"{path.stem[:80]}-{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:16]}"
    )
    if not _is_current(directory, path, status.st_size):
        report(f"reading {path.name}", 0, status.st_size)
        _publish(_convert(path), directory, lambda: _is_current(directory, path, status.st_size))
        report(f"reading {path.name}", status.st_size, status.st_size)
    return directory


def _is_current(directory: Path, path: Path, size: int) -> bool:
    """Whether the cached directory is whole and made of this file. A damaged one is simply made again."""
    try:
        index = msgspec.json.decode((directory / INDEX).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return False
    return (
        index.get("version") == VERSION
        and index.get("file") == str(path)
        and index.get("size") == size
        and all((directory / name).is_file() for name in ("config.json", "tokenizer.json", "tokenizer_config.json"))
    )


def _convert(path: Path) -> dict[str, bytes]:
    """The files of the checkpoint directory, by name."""
    # Imported here: the gguf package and numpy are not needed when the cache has the result.
    from app.checkpoints.gguf_config import ROPE_TENSORS, generation_config, model_config
    from app.checkpoints.gguf_metadata import read_gguf
    from app.checkpoints.gguf_pooling import pooling_files
    from app.checkpoints.gguf_tokenizer import build_tokenizer, tokenizer_config

    gguf = read_gguf(path)
    config = model_config(gguf)
    tokenizer = build_tokenizer(gguf)
    if tokenizer.get_vocab_size() > config["vocab_size"]:
        raise CheckpointError(
            f"{path}: tokenizer.ggml.tokens has {tokenizer.get_vocab_size()} tokens, but token_embd.weight only "
            f"{config['vocab_size']} rows"
        )
    tensors = [attrs.asdict(tensor) for tensor in gguf.tensors.values() if tensor.name not in ROPE_TENSORS]
    index = {
        "version": VERSION,
        "file": str(path),
        "size": gguf.size,
        "architecture": gguf.require("general.architecture", str),
        "tensors": tensors,
    }
    return {
        "config.json": _pretty(config),
        "generation_config.json": _pretty(generation_config(gguf)),
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": _pretty(tokenizer_config(gguf)),
        INDEX: msgspec.json.encode(index),
    } | pooling_files(gguf)


def _pretty(value: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


def _publish(files: dict[str, bytes], directory: Path, is_current: Callable[[], bool]) -> None:
    """Write the files beside, then rename the whole: another process sees all of them or none."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=directory.parent) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            for name, content in files.items():
                (made / name).parent.mkdir(exist_ok=True)
                with (made / name).open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            _move_into_place(made, directory, is_current)
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be written: {error.strerror or error}") from error


def _move_into_place(made: Path, directory: Path, is_current: Callable[[], bool]) -> None:
    for attempt in range(3):
        try:
            made.rename(directory)
        except OSError:
            # Somebody else made the same meanwhile: theirs is as good. Otherwise what lies there is damaged.
            if is_current():
                return
            with contextlib.suppress(FileNotFoundError):
                directory.rename(made.parent / f"damaged{attempt}")
        else:
            return
    made.rename(directory)
