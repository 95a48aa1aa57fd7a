"""Shows on a terminal how far a download or conversion is; elsewhere, says in the log that it began and ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

logger = logging.getLogger("trillm")

Report = Callable[[str, int, int], None]
"""What is being done, how many bytes are done, of how many (0: not known)."""


@contextmanager
def open_progress() -> Iterator[Report]:
    """Yields the function to report to."""
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield report_in_log()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what)
            progress.update(tasks[what], completed=done, total=total or None)

        yield show


def report_in_log() -> Report:
    """A line when each thing begins."""
    seen: set[str] = set()

    def log(what: str, done: int, total: int) -> None:
        if what not in seen:
            seen.add(what)
            logger.info("%s%s", what, f" ({total / 1e6:.0f} MB)" if total else "")

    return log
