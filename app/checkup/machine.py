"""The facts of this machine that decide whether a server runs here. Read once by app/commands/check.py; nothing is
concluded here.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import tempfile
import time
from pathlib import Path

import attrs

from app.checkup.packages import Packages, installed_packages
from app.checkup.processors import Processors, processors
from app.settings import Settings
from protocol.host_memory import available_memory, total_memory


@attrs.frozen
class Place:
    """A directory that is written to."""

    path: Path
    trouble: str
    """Why it cannot be written; "" if it can."""
    free_bytes: int


@attrs.frozen
class Machine:
    python: str
    system: str
    has_pidfd: bool
    """The kernel tells of the end of processes by a file descriptor."""
    packages: Packages
    processors: Processors
    total_memory: int
    available_memory: int
    """Both within what the control group may have."""
    cache: Place
    runtime: Place
    """Where sockets lie."""
    shared_memory: int | None
    """Bytes of /dev/shm, which NCCL needs; None: there is none."""
    descriptors: int
    """That this process may have, at most; -1 is no limit."""
    port_trouble: str
    """Why nobody could listen there; "" if one could."""
    now: float
    """Unix time."""


def look_around(settings: Settings) -> Machine:
    """Writes one temporary file into each of the places, and listens for a moment."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shm = Path("/dev/shm")
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        has_pidfd=_has_pidfd(),
        packages=installed_packages(),
        processors=processors(),
        total_memory=total_memory(),
        available_memory=available_memory(),
        cache=place(settings.cache_directory),
        runtime=place(Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())),
        shared_memory=shutil.disk_usage(shm).total if shm.is_dir() else None,
        descriptors=-1 if hard == resource.RLIM_INFINITY else hard,
        port_trouble=port_trouble(settings),
        now=time.time(),
    )


def place(path: Path) -> Place:
    """It may not be there yet: then it is the nearest directory above that has to be writable."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        free = shutil.disk_usage(there).free
        with tempfile.TemporaryFile(dir=there):
            return Place(path, "", free)
    except OSError as error:
        return Place(path, f"{there}: {error.strerror or error}", 0)


def port_trouble(settings: Settings) -> str:
    """Why the server could not listen where it is to."""
    if settings.uds is not None:
        parent = settings.uds.absolute().parent
        return "" if os.access(parent, os.W_OK | os.X_OK) else f"{parent} cannot be written to"
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
            tried.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):  # an old kernel, a sandbox that forbids it, or no Linux
        return False
    return True
