"""GET /load and /version."""

from __future__ import annotations

import msgspec


class LoadAnswer(msgspec.Struct, frozen=True):
    """How many answers are being given."""

    server_load: int


class VersionAnswer(msgspec.Struct, frozen=True):
    """The server's version."""

    version: str
