"""Why something failed, in the words of whoever says so: as they may come into a log or an answer of ours. Pure."""

from __future__ import annotations

MAX_REASON_LENGTH = 500


def reason(error: BaseException) -> str:
    """Of the first error in a group that says something, bounded."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)  # no paths
    text = tidy(told)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def tidy(text: str) -> str:
    """On one line, bounded, and without what would move a terminal's cursor: it may come into a log."""
    printable = "".join(char if char.isprintable() else " " for char in text[: 4 * MAX_REASON_LENGTH])
    return " ".join(printable.split())[:MAX_REASON_LENGTH]
