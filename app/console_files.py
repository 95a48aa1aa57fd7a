"""The console's files as they are served: read once, by names that are fixed before the first request comes. Used by
app/routes/console.py, and by app/factory.py for the paths that need no key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from attrs import frozen

from protocol.errors import StartError

INDEX = "index.html"
BELOW = "/console/"
"""Where all of them are but the page itself, which is at /."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOLDERS = ("vendor",)


@frozen
class ConsoleFile:
    data: bytes
    content_type: str
    etag: str
    """Quoted, as the header has it."""


@lru_cache(maxsize=1)  # they are installed with us, and do not change while we run
def console_files() -> Mapping[str, ConsoleFile]:
    """By name, with that of its folder and a slash before it. Raises StartError if they were not installed."""
    root = files("app.console")
    found = {entry.name: entry for entry in root.iterdir() if entry.is_file()}
    for folder in _FOLDERS:
        found |= {f"{folder}/{entry.name}": entry for entry in root.joinpath(folder).iterdir() if entry.is_file()}
    read = {name: _read(entry, content_type) for name, entry in found.items() if (content_type := _type(name))}
    if INDEX not in read:
        raise StartError("the console's files are missing from this installation; --no-console does without them")
    return dict(sorted(read.items()))


def public_paths() -> frozenset[str]:
    """Those of all of them, as they are asked for."""
    return frozenset("/" if name == INDEX else BELOW + name for name in console_files())


def _type(name: str) -> str | None:
    return _TYPES.get(name[name.rfind(".") :])


def _read(entry: Traversable, content_type: str) -> ConsoleFile:
    data = entry.read_bytes()
    return ConsoleFile(data, content_type, f'"{hashlib.sha256(data).hexdigest()[:32]}"')
