"""Starts that are not like the next one: after the machine's own, and the very first one. Used by the course."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from scripts.benchmark.compare.contenders import Contender
from scripts.benchmark.processes import open_server


def cold_start_seconds(contender: Contender, log: Path) -> float:
    """To ready, with nothing of the server and the model in memory, as after a start of the machine.

    What another process has mapped stays in memory: of a second server from the same files, say. Raises
    ServerFailedError.
    """
    drop_from_page_cache(contender.files)
    with open_server(contender.server, log) as running:
        return running.ready_seconds


def first_start_seconds(contender: Contender, log: Path) -> float | None:
    """To ready, without anything that earlier starts cached; None if it caches nothing. Raises ServerFailedError."""
    if not contender.caches:
        return None
    with tempfile.TemporaryDirectory() as empty:
        environment = dict(contender.first.environment) | dict.fromkeys(contender.caches, empty)
        with open_server(attrs.evolve(contender.first, environment=environment), log) as running:
            return running.ready_seconds


def drop_from_page_cache(places: Iterable[Path]) -> None:
    """Have these files read from the disk next time, as far as the system does as it is asked."""
    for path in _files(places):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # gone meanwhile, or not ours to read
            continue
        try:
            os.fdatasync(descriptor)  # only what is written is given up
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_dir():
            yield from (path for path in place.rglob("*") if path.is_file())
        else:
            yield place
