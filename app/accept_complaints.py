"""trio logs a traceback each time that no connection can be accepted, ten times a second while descriptors are out.

This leaves one line a second of it. Used by app/cli.py's logging.
"""

from __future__ import annotations

import logging
import math

LOGGER = "trio.serve_listeners"


class OneLineASecond(logging.Filter):
    """For one logger: without tracebacks, and not more than one record a second by the records' own time."""

    def __init__(self) -> None:
        super().__init__()
        self._latest = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = None
        if 0.0 <= record.created - self._latest < 1.0:  # the clock may have been set back
            return False
        self._latest = record.created
        return True
