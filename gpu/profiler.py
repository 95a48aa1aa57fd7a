"""A runner's profile: one at a time, begun and ended on demand, and ended by itself before it grows too large.

What is recorded, and how, is the runner's: torch's events (gpu/torch_recording) or its steps only (gpu/step_recording).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol, final

from protocol.errors import ConflictError
from protocol.operations import ProfileState

MAX_STEPS = 1000
MAX_SECONDS = 60.0
"""Whichever is reached first ends a profile that nobody has stopped. torch keeps all events in memory until then."""

logger = logging.getLogger("trillm.profile")


class Recording(Protocol):
    """Records from when it was made. All methods are called from the thread that made it."""

    def span(self, name: str) -> AbstractContextManager[object]:
        """What happens inside is shown under this name."""

    def end(self, path: Path) -> None:
        """Stop, and write everything to this file in Chrome's trace format. Raises OSError."""


@final
class Profiler:
    """Used by one runner, in its thread."""

    def __init__(
        self,
        begin: Callable[[], Recording],
        *,
        clock: Callable[[], float] = time.monotonic,
        max_steps: int = MAX_STEPS,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self._begin = begin
        self._clock = clock
        self._max_steps = max_steps
        self._max_seconds = max_seconds
        self._recording: Recording | None = None
        self._path = Path()
        self._num_steps = 0
        self._began = 0.0
        self._cut_off: ProfileState | None = None

    @property
    def is_recording(self) -> bool:
        return self._recording is not None

    def start(self, path: Path) -> ProfileState:
        """Record from now on. Raises ConflictError if it does already, or if the file's directory cannot be made."""
        if self._recording is not None:
            raise ConflictError(f"a profile is being recorded already, to {self._path}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConflictError(f"profiles cannot be written to {path.parent}: {error.strerror or error}") from error
        self._recording = self._begin()
        self._path, self._num_steps, self._began, self._cut_off = path, 0, self._clock(), None
        return self._state(is_cut_off=False)

    def stop(self) -> ProfileState:
        """Write what was recorded. One that ended by itself is told of once. Raises ConflictError if there is none, or
        if it cannot be written."""
        if self._recording is None:
            if self._cut_off is None:
                raise ConflictError("no profile is being recorded")
            state, self._cut_off = self._cut_off, None
            return state
        self._end()
        return self._state(is_cut_off=False)

    def span(self, name: str) -> AbstractContextManager[object]:
        """A part of a step."""
        return nullcontext() if self._recording is None else self._recording.span(name)

    def end_step(self) -> None:
        """Another step is done."""
        if self._recording is None:
            return
        self._num_steps += 1
        if self._num_steps < self._max_steps and self._clock() - self._began < self._max_seconds:
            return
        try:
            self._end()
        except ConflictError as error:
            logger.warning("%s", error.message)
        else:
            self._cut_off = self._state(is_cut_off=True)
            logger.warning(
                "nobody has stopped the profile, which ends here: %s steps are in %s", self._num_steps, self._path
            )

    def _end(self) -> None:
        assert self._recording is not None
        recording, self._recording = self._recording, None
        try:
            recording.end(self._path)
        except OSError as error:
            raise ConflictError(f"{self._path} cannot be written: {error.strerror or error}") from error

    def _state(self, *, is_cut_off: bool) -> ProfileState:
        return ProfileState(str(self._path), self._num_steps, is_cut_off)
