"""A start as after the machine's own: nothing of the server or of the model in memory, nothing cached by itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from scripts.benchmark.compare.contenders import Contender
from scripts.benchmark.processes import open_server


def cold_start_seconds(contender: Contender, log: Path) -> float:
    """From starting the process to the first 200. Raises ServerFailedError.

    What another process has mapped stays in memory: a second server from the same files, say.
    """
    with tempfile.TemporaryDirectory() as empty:
        environment = dict(contender.cold.environment) | dict.fromkeys(contender.caches, empty)
        drop_from_page_cache(contender.files)
        with open_server(attrs.evolve(contender.cold, environment=environment), log) as running:
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
