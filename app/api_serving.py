"""What an API server of several gets to know from the main process: settings and checkpoint, as the main process has
read and checked them. Written by app/api_servers.py, read by app/api_server.py; nobody else looks into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from attrs import frozen

from app.checkpoints.resolve import Checkpoint
from app.settings import Settings


@frozen
class ApiServing:
    settings: Settings
    checkpoint: Checkpoint
    is_activated: bool = False
    """As app.listening.ListeningConfig has it."""
    started_at: float | None = None
    """Unix time: when the main process began, whenever this server did."""


def written(serving: ApiServing) -> bytes:
    return msgspec.json.encode(serving, enc_hook=_path_to_text)


def read(data: bytes) -> ApiServing:
    """As it was written."""
    return msgspec.json.decode(data, type=ApiServing, dec_hook=_text_to_path)


def _path_to_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"settings have no {type(value).__name__}")


def _text_to_path(kind: type[Any], value: object) -> Path:
    if issubclass(kind, Path):
        return Path(str(value))
    raise NotImplementedError(f"settings have no {kind.__name__}")
