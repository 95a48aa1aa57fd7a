"""How calls of MCP tools ended and what time they took. Counted by app/tools/box.py, told by app/tool_metrics.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, final

import trio
from attrs import define

from app.distribution import Distribution

Outcome = Literal["completed", "failed", "timed_out", "cancelled"]
OUTCOMES: tuple[Outcome, ...] = ("completed", "failed", "timed_out", "cancelled")
FROM_REQUEST = "request"
"""The label of all servers that requests bring themselves: no client makes series of its own."""
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@define
class Ending:
    """Of one call that is being made."""

    outcome: Outcome = "cancelled"
    """Unless somebody says otherwise: its response was left before it had an end."""


@final
class CallCounts:
    """Of one API server, by the label of the tools' server."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, ...]] = Counter()
        """By label and outcome."""
        self.seconds = Distribution(SECONDS)

    def add_label(self, label: str) -> None:
        """Of a server that can be called from now on: what has not happened yet is told as zero."""
        for outcome in OUTCOMES:
            self.calls[label, outcome] += 0

    @contextmanager
    def counted(self, label: str) -> Iterator[Ending]:
        """Around one call."""
        began = trio.current_time()
        ending = Ending()
        try:
            yield ending
        finally:
            self.calls[label, ending.outcome] += 1
            self.seconds.observe(trio.current_time() - began)
