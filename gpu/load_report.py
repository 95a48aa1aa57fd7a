"""What a loading thread tells of how far it is: the part of the weights that is loaded, and what it is at.

`Report` is all that most code needs to know. A LoadReport hears of phases, too; actors' mains make one, and `enter`
tells it which of protocol/phases.py begins. Used by the mains of engines, ranks and the weights actor, and what loads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

Report = Callable[[float], None]
"""Called from the loading thread with the part of the weights that is loaded, 0 to 1."""


@final
class LoadReport:
    """A Report that hears of phases, too."""

    def __init__(self, progress: Report, enter: Callable[[str], None]) -> None:
        """Both are called from the loading thread."""
        self._progress = progress
        self.enter = enter

    def __call__(self, done: float) -> None:
        self._progress(done)


def enter(report: Report, phase: str) -> None:
    """This begins now."""
    if isinstance(report, LoadReport):
        report.enter(phase)


def part_of(report: Report, scale: Callable[[float], float]) -> Report:
    """For something whose progress is a part of the whole's."""

    def progress(done: float) -> None:
        report(scale(done))

    return LoadReport(progress, report.enter) if isinstance(report, LoadReport) else progress
