"""The start of a server as a terminal shows it: a line for each phase, one for the actors, and then a summary.

Used by app/commands/serve.py, where stderr is a terminal that can be drawn on. Lines that anybody logs meanwhile come
above what is drawn, whole; once the server is ready nothing is drawn any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from actors.handles import ActorState
from app.start_screen import Served
from app.startup import Startup
from app.terminal import Terminal, open_terminal
from protocol.phases import START

MOST_ACTORS = 12
BAR_WIDTH = 24
COLUMNS = 4
"""A mark, what it is, how far, how long."""
BESIDE = ("standby-", "grammar-")
"""Actors that come later, and that no start waits for."""


@final
class LiveScreen:
    """Draws until it is told that the server is ready, or left. Fulfils app.start_screen.StartScreen."""

    logs = False

    def __init__(self, terminal: Terminal, startup: Startup) -> None:
        self._terminal = terminal
        self._console = Console(file=terminal.file)
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            console=self._console,
            get_renderable=lambda: drawn(startup, self._spinner),
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._is_open = False

    def open(self) -> None:
        self._terminal.write_line = self._print_above
        self._live.start(refresh=True)
        self._is_open = True

    def _print_above(self, line: str) -> None:
        self._console.print(Text.from_ansi(line), soft_wrap=True, highlight=False)

    def close(self) -> None:
        """The terminal is as it was, and what was written comes straight to it. Idempotent."""
        if self._is_open:
            self._is_open = False
            self._terminal.drain()
            self._live.stop()
            self._terminal.release()

    def starting(self, model: str, url: str | None) -> None:
        """That is in the summary."""

    def stopping(self) -> None:
        self.close()

    def ready(self, startup: Startup, served: Served) -> None:
        self.close()
        self._console.print(summarised(startup, served), soft_wrap=True, highlight=False)


def drawn(startup: Startup, spinner: RenderableType) -> RenderableType:
    """What goes on: phases that are over, what this process or an engine is at, and the actors."""
    table = Table.grid(padding=(0, 2))
    for _ in range(COLUMNS):
        table.add_column(no_wrap=True, overflow="ellipsis")
    for phase, seconds in startup.told_seconds.items():
        table.add_row(Text("✓", "green"), phase, "", Text(f"{seconds:.1f} s", "dim", justify="right"))
    actors = [state for state in startup.actors if not state.name.startswith(BESIDE)]
    if not startup.is_over:
        what = Text.assemble((startup.phase, "bold"), (f"  {startup.detail}" if startup.detail else "", "dim"))
        shown = _bar(startup.progress) if 0.0 < startup.progress < 1.0 else Text()
        table.add_row(spinner, what, shown, Text(f"{startup.phase_seconds:.1f} s", justify="right"))
    lines: list[RenderableType] = [table]
    late = [state for state in actors if not state.ready]
    if actors:
        told = ", ".join(_told(state) for state in late[:MOST_ACTORS])
        more = f" and {len(late) - MOST_ACTORS} more" if len(late) > MOST_ACTORS else ""
        count = f"{len(actors) - len(late)} of {len(actors)} processes ready"
        lines.append(Text(f"   {count}{': ' if told else ''}{told}{more}", "dim", no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _told(state: ActorState) -> str:
    part = f" {state.progress:.0%}" if 0.0 < state.progress < 1.0 else ""
    return f"{state.name} {state.phase if state.pid is not None else START}{part}"


def _bar(part: float) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(1.0, part, width=BAR_WIDTH), f"{part:.0%}")
    return grid


def summarised(startup: Startup, served: Served) -> RenderableType:
    """Where it is, and what to do next."""
    ready = (f" is ready after {startup.total:.1f} s", "bold")
    head = Text.assemble(("✓ ", "bold green"), (served.model, "bold"), ready)
    if summary := startup.summary():
        head.append(f": {summary}", "dim")
    also = "; at this machine's other addresses, too" if served.is_everywhere else ""
    rows = [
        ("Model", served.in_short, ""),
        ("API", served.api, f"{served.key}{also}"),
        ("Console", served.console, ""),
        ("Try", served.try_it, ""),
    ]
    lines = [head]
    for name, value, note in rows:
        if value:
            what, more = (value, "" if name == "Model" else "cyan"), (f"  ({note})" if note else "", "dim")
            lines.append(Text.assemble((f"  {name:<8} ", "dim"), what, more))
    return Group(*lines)


@contextmanager
def open_live_screen(startup: Startup) -> Iterator[LiveScreen]:
    """Whatever happens, the terminal is as it was afterwards."""
    with open_terminal() as terminal:
        screen = LiveScreen(terminal, startup)
        screen.open()
        try:
            yield screen
        finally:
            screen.close()
