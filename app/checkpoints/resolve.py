"""From MODEL on the command line to a checkpoint directory on disk. Used by app/cli, in a worker thread."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from pathlib import Path

import attrs

from app.checkpoints.default_model import NAME as DEFAULT_NAME
from app.checkpoints.default_model import fetch_default_model
from app.checkpoints.gguf_checkpoint import open_gguf
from app.checkpoints.hub import fetch_repository
from protocol.errors import CheckpointError

Report = Callable[[str, int, int], None]
"""What is being done, how many bytes are done, of how many (0: not known yet). Called in the caller's thread; an
exception from it ends what is being done."""


class Source(enum.StrEnum):
    """Where a checkpoint came from."""

    DEFAULT = "default"
    GGUF = "gguf"
    DIRECTORY = "directory"
    HUB = "hub"


@attrs.frozen
class Checkpoint:
    """A directory with all that a model is served from, and the name to serve it under unless another is given."""

    directory: Path
    name: str
    source: Source
    draft: Path | None = None
    """The directory of the model that guesses its next tokens, if the operator has named one."""


def resolve(model: str | None, *, cache_dir: Path, report: Report, revision: str | None = None) -> Checkpoint:
    """Find, fetch or convert the model.

    `model` is None or the default model's name, a path to a .gguf file, a path to a Hugging Face model directory, or a
    model's name on the Hub (`revision` is for this one only). What is fetched or converted lands in `cache_dir`,
    except the Hub's own cache. Raises CheckpointError in one sentence.
    """
    if model is None or model.lower() == DEFAULT_NAME.lower():
        directory = open_gguf(fetch_default_model(cache_dir, report), cache_dir, report)
        return Checkpoint(directory, DEFAULT_NAME, Source.DEFAULT)
    path = Path(model).expanduser()
    if path.is_dir():
        return _open_directory(path, cache_dir, report)
    if path.is_file():
        return Checkpoint(open_gguf(path, cache_dir, report), path.stem, Source.GGUF)
    if _looks_like_a_path(model):
        raise CheckpointError(f"{model}: no such file or directory")
    return Checkpoint(fetch_repository(model, report, revision=revision), model, Source.HUB)


def is_path(model: str) -> bool:
    """It is meant as one on this disk, not as a name on the Hub."""
    return Path(model).expanduser().exists() or _looks_like_a_path(model)


def _looks_like_a_path(model: str) -> bool:
    return (
        model.startswith((".", "~", os.sep))
        or model.endswith((".gguf", ".safetensors", os.sep))
        or model.count("/") > 1
    )


def _open_directory(path: Path, cache_dir: Path, report: Report) -> Checkpoint:
    """A Hugging Face directory, or one with nothing but one .gguf file."""
    name = path.resolve().name
    if (path / "config.json").is_file():
        return Checkpoint(path.resolve(), name, Source.DIRECTORY)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return Checkpoint(open_gguf(files[0], cache_dir, report), files[0].stem, Source.GGUF)
    if files:
        names = ", ".join(file.name for file in files)
        raise CheckpointError(f"{path}: has several .gguf files, give the path of one of them: {names}")
    raise CheckpointError(f"{path}: has neither config.json nor a .gguf file")
