"""How a checkpoint's embeddings are made, as sentence-transformers writes it down. Used by app/pooler_config.py.

A checkpoint that says nothing is a generating model: its vector is the last token's, of length 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
from attrs import frozen

from protocol.errors import CheckpointError
from protocol.pooling import Pooling

T = TypeVar("T")

MODULES = "modules.json"
_MODES = {"cls": Pooling.CLS, "cls_token": Pooling.CLS, "mean": Pooling.MEAN, "mean_tokens": Pooling.MEAN}
_MODES |= {"last": Pooling.LAST, "lasttoken": Pooling.LAST}
"""pooling_mode, and the ends of pooling_mode_… in older files."""
_FLAG = "pooling_mode_"


@frozen
class Pooler:
    """What becomes of a prompt's hidden states."""

    pooling: Pooling = Pooling.LAST
    normalize: bool = True
    refusal: str | None = None
    """Why this model's embeddings cannot be computed."""


class _Module(msgspec.Struct, frozen=True):
    path: str
    type: str


def read_pooler(checkpoint: Path) -> Pooler:
    """modules.json and the pooling module's config.json. Raises CheckpointError for files that cannot be read."""
    path = checkpoint / MODULES
    if not path.is_file():
        return Pooler()
    modules = _read(path, list[_Module])
    kinds = [module.type.rpartition(".")[2] for module in modules]
    if "Pooling" not in kinds:
        return Pooler()
    if others := [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]:
        return Pooler(refusal=f"{MODULES} has a module {others[0]}")
    place = modules[kinds.index("Pooling")].path
    if Path(place).name != place:
        raise CheckpointError(f"{path}: {place!r} is no directory beside it")
    config = _read(checkpoint / place / "config.json", dict[str, Any])
    modes = _modes(config)
    if len(modes) != 1 or modes[0] not in _MODES:
        return Pooler(refusal=f"{place}/config.json asks for pooling by {' and '.join(modes) or 'nothing'}")
    return Pooler(_MODES[modes[0]], "Normalize" in kinds)


def _modes(config: dict[str, Any]) -> list[str]:
    if isinstance(mode := config.get("pooling_mode"), str):
        return [mode]
    return [key.removeprefix(_FLAG) for key, is_set in config.items() if key.startswith(_FLAG) and is_set is True]


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path}: {error}") from error
