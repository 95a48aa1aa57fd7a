"""Which models are on this disk already: what `trillm serve` needs no network for. Used by `trillm pull --list`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from attrs import frozen

from app.checkpoints.default_model import FILE, NAME
from app.checkpoints.gguf_checkpoint import INDEX


@frozen
class CachedModel:
    name: str
    """As `trillm serve` takes it; the default one's takes nothing."""
    num_bytes: int
    path: Path


def cached_models(cache_dir: Path, hub_cache: Path | None = None) -> list[CachedModel]:
    """The default model, GGUF files that were converted and are still there, and models of the Hub. `hub_cache` is that
    library's own unless another is given."""
    default = cache_dir / "default" / FILE
    found = [CachedModel(NAME, default.stat().st_size, default)] if default.is_file() else []
    files = {path: None for path in _converted(cache_dir) if path != default.resolve() and path.is_file()}
    found += [CachedModel(str(path), path.stat().st_size, path) for path in sorted(files)]
    return found + list(_of_the_hub(hub_cache or _hub_cache()))


def _converted(cache_dir: Path) -> Iterator[Path]:
    for index in (cache_dir / "gguf").glob(f"*/{INDEX}"):
        try:
            said = msgspec.json.decode(index.read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.DecodeError):  # a damaged one is made again when it is needed
            continue
        if isinstance(path := said.get("file"), str):
            yield Path(path)


def _hub_cache() -> Path:
    """Where the library keeps models, by the variables that it reads; it is not imported to be asked."""
    if given := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or f"{cache}/huggingface").expanduser() / "hub"


def _of_the_hub(hub_cache: Path) -> Iterator[CachedModel]:
    if not hub_cache.is_dir():
        return
    from huggingface_hub import scan_cache_dir

    repositories = [repository for repository in scan_cache_dir(hub_cache).repos if repository.repo_type == "model"]
    for repository in sorted(repositories, key=lambda one: one.repo_id):
        yield CachedModel(repository.repo_id, repository.size_on_disk, repository.repo_path)
