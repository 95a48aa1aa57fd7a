"""The private directory of a run's sockets: ours alone (0700), short enough for a socket path, gone at exit."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import StartError

MAX_SOCKET_PATH = 107
"""Bytes, of a Unix socket's address on Linux, without the closing NUL."""
LONGEST_NAME = 24
"""Bytes that a socket's own name may take."""
PREFIX = "trillm-"
LOCK = "lock"
"""Locked as long as the run lives."""


def candidates() -> list[Path]:
    """Where the directory may be made, best first. TMPDIR may be too long, read-only or somebody else's."""
    places = [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp", "/dev/shm"]
    return [Path(place) for place in dict.fromkeys(places) if place]


def runtime_places() -> list[Path]:
    """Those of them whose paths are short enough: the first one that can be written is taken."""
    return [parent for parent in candidates() if is_short_enough(parent)]


def is_short_enough(parent: Path) -> bool:
    """A socket in a run's directory there has an address that the kernel takes."""
    return len(os.fsencode(parent)) + len(f"/{PREFIX}4194304-12345678/") + LONGEST_NAME <= MAX_SOCKET_PATH


def remove_stale(parent: Path) -> None:
    """Remove what runs of ours left there when they were killed: our user's directories that nobody has locked.

    A lock and not a pid, which may be another one's in another container that shares the place.
    """
    for entry in parent.glob(f"{PREFIX}*/{LOCK}"):
        try:
            if entry.lstat().st_uid != os.getuid():
                continue
            with entry.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.parent, ignore_errors=True)
        except (FileNotFoundError, BlockingIOError):
            continue  # another run of ours was quicker, or it is alive


@contextmanager
def open_runtime_directory() -> Iterator[Path]:
    """Raises StartError naming what was tried if no place will do."""
    refusals: list[str] = []
    for parent in candidates():
        if not is_short_enough(parent):
            refusals.append(f"{parent}: too long for a socket path of {MAX_SOCKET_PATH} bytes")
            continue
        try:
            remove_stale(parent)
            directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
            lock = (directory / LOCK).open("w")
        except OSError as error:
            refusals.append(f"{parent}: {error.strerror}")
            continue
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield directory
            finally:
                shutil.rmtree(directory, ignore_errors=True)
        return
    raise StartError("no place for the run's sockets; tried " + "; ".join(refusals))
