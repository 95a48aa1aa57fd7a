"""Which of the servers that share a store still live: each holds a lock on a file of its own, which the kernel lets go
when the process ends, however it ends.

Used by app/responses/archive.py. Process ids would not do: they come again, and mean nothing in another container.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

_MARK = "-owner-"


@final
class Owner:
    """This server, as one of those that use the store at `path`."""

    def __init__(self, path: Path) -> None:
        """Creates and locks the file. Raises OSError."""
        self._store = path
        self.name = secrets.token_hex(8)
        self._descriptor = _locked(self._file(self.name))

    def lives(self, name: str) -> bool:
        """Whether the server of this name still runs. Raises OSError."""
        return name == self.name or _is_locked(self._file(name))

    def remove_dead(self) -> None:
        """The files of servers that were killed. Raises OSError."""
        for file in self._store.parent.glob(f"{self._store.name}{_MARK}*"):
            if file == self._file(self.name):
                continue
            with _tried(file, fcntl.LOCK_EX) as is_free:  # whoever has just made it waits, and makes another one
                if is_free:
                    file.unlink(missing_ok=True)

    def close(self) -> None:
        self._file(self.name).unlink(missing_ok=True)
        os.close(self._descriptor)

    def _file(self, name: str) -> Path:
        return self._store.with_name(f"{self._store.name}{_MARK}{name}")


def _locked(file: Path) -> int:
    while True:
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            if os.stat(file).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            pass  # another server took it for a dead one's, between these lines
        os.close(descriptor)


def _is_locked(file: Path) -> bool:
    with _tried(file, fcntl.LOCK_SH) as is_free:
        return not is_free


@contextmanager
def _tried(file: Path, how: int) -> Iterator[bool]:
    """Whether nobody else has a lock on it, which we then have as long as this lasts."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        is_free = True
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            is_free = False
        yield is_free
    finally:
        os.close(descriptor)
