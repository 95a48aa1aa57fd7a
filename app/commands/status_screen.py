"""Where `trillm status` shows its readings: in place on a terminal, one after another elsewhere. Used by
app/commands/status.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO, final

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from app.commands.status_rates import Rates
from app.commands.status_reading import Reading
from app.commands.status_view import BAD, DIM, duration, line, view


class Screen(Protocol):
    def show(self, reading: Reading, place: str, rates: Rates | None = None) -> None: ...

    def show_silence(self, seconds: float, reason: str) -> None:
        """No answer for so long."""


@contextmanager
def open_screen(out: TextIO, *, is_json: bool, goes_on: bool) -> Iterator[Screen]:
    """The one for what is asked for, and for what `out` is."""
    console = Console(file=out, highlight=False, soft_wrap=False)
    if is_json:
        yield JsonLines(out, is_for_people=not goes_on)
    elif not goes_on:
        yield Once(console)
    elif not console.is_terminal or console.is_dumb_terminal:
        yield Lines(out)
    else:
        with Live(console=console, auto_refresh=False) as live:
            yield InPlace(live)


@final
class Once:
    """The whole view, printed."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, reading: Reading, place: str, rates: Rates | None = None) -> None:
        self._console.print(view(reading, place, rates))

    def show_silence(self, seconds: float, reason: str) -> None:
        self._console.print(reason, markup=False)


@final
class InPlace:
    """The whole view, over the one before."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._last: RenderableType = Text()

    def show(self, reading: Reading, place: str, rates: Rates | None = None) -> None:
        self._last = view(reading, place, rates)
        self._live.update(self._last, refresh=True)

    def show_silence(self, seconds: float, reason: str) -> None:
        """Under what was known last."""
        since = Text.assemble((f"● no answer for {duration(seconds)}", f"bold {BAD}"), (f"  {reason}", DIM))
        self._live.update(Group(since, Text(), self._last), refresh=True)


@final
class Lines:
    """One for each reading."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, reading: Reading, place: str, rates: Rates | None = None) -> None:
        self._say(line(reading, rates))

    def show_silence(self, seconds: float, reason: str) -> None:
        self._say(f"no answer for {duration(seconds)}: {reason}")

    def _say(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


@final
class JsonLines:
    """The reading itself, or `error`."""

    def __init__(self, out: TextIO, *, is_for_people: bool) -> None:
        self._out = out
        self._is_for_people = is_for_people

    def show(self, reading: Reading, place: str, rates: Rates | None = None) -> None:
        self._say(msgspec.json.encode(reading))

    def show_silence(self, seconds: float, reason: str) -> None:
        self._say(msgspec.json.encode({"error": reason, "seconds": round(seconds, 1)}))

    def _say(self, data: bytes) -> None:
        self._out.write((msgspec.json.format(data) if self._is_for_people else data).decode() + "\n")
        self._out.flush()
