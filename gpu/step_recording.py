"""A profile of named spans alone, for a runner without torch: when each began and how long it took."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

import msgspec


class _Event(msgspec.Struct, frozen=True):
    name: str
    ts: float
    """Microseconds, as `dur`."""
    dur: float
    pid: int
    tid: int = 0
    ph: str = "X"


@final
class StepRecording:
    """Implements gpu.profiler.Recording."""

    def __init__(self) -> None:
        self._events: list[_Event] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - began
            self._events.append(_Event(name, began * 1e6, took * 1e6, os.getpid()))

    def end(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode({"traceEvents": self._events, "displayTimeUnit": "ms"}))
