"""The facts of this machine that decide whether a server runs here. Read once by app/commands/check.py; nothing is
concluded here.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from actors.handles import runtime_places
from app.checkup.address import Address, find_address
from app.checkup.packages import Packages, installed_packages
from app.checkup.processors import Processors, processors
from app.listening import hypercorn_config
from app.settings import Settings
from app.tracing.start import check_tracing
from protocol.errors import TrillmError
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
    address: Address
    """Where a server would listen."""
    refusals: tuple[str, ...]
    """Of settings that no server would start with: sentences."""
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
        runtime=first_writable(runtime_places()),
        shared_memory=shutil.disk_usage(shm).total if shm.is_dir() else None,
        descriptors=-1 if hard == resource.RLIM_INFINITY else hard,
        address=find_address(settings),
        refusals=tuple(refusals(settings)),
        now=time.time(),
    )


def place(path: Path) -> Place:
    """It may not be there yet: then it is the nearest directory above that has to be writable."""
    there = path
    try:
        while not there.exists() and there != there.parent:
            there = there.parent
        free = shutil.disk_usage(there).free
        with tempfile.TemporaryFile(dir=there):
            return Place(path, "", free)
    except OSError as error:
        return Place(path, f"{there}: {error.strerror or error}", 0)


def first_writable(paths: Sequence[Path]) -> Place:
    """The first that can be written, as a server takes it; the first of all if none can."""
    found = [place(path) for path in paths]
    return next((one for one in found if not one.trouble), found[0])


def refusals(settings: Settings) -> Iterator[str]:
    """Why a server would not start with these settings, as far as they name files and packages of this machine."""
    for check in (lambda: hypercorn_config(settings), lambda: check_tracing(settings.otlp_traces_endpoint)):
        try:
            check()
        except TrillmError as error:
            yield error.message


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):  # an old kernel, a sandbox that forbids it, or no Linux
        return False
    return True
