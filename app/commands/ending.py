"""How a command ends: its status, and one sentence for the operator where it could not go on. Used by every command."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress

from app.commands.closed_output import nobody_reads
from protocol.errors import TrillmError, leaves
from protocol.log_lines import LogStyle, safe, style_of

MOST_CHARACTERS = 4000
"""Of a line for the operator: what was given may be longer than a screen."""

logger = logging.getLogger("trillm")


def status_of(run: Callable[[], int]) -> int:
    """Its status, or one sentence and the status of a failure that the operator can do something about."""
    reasons: list[str] = []
    try:
        return run()
    except* (TrillmError, OSError) as group:  # what fails inside a nursery comes out of it in a group
        reasons = [str(error) for error in leaves(group)]
    return refuse("; ".join(dict.fromkeys(reasons)))


def tell(text: str) -> int:
    """What was asked for, on standard output, in characters that it has; and the exit status."""
    stream = sys.stdout
    shown = text.encode(stream.encoding or "utf-8", "replace").decode(stream.encoding or "utf-8")
    try:
        print(shown, flush=True)  # noqa: T201  it is what was asked for
    except BrokenPipeError:  # as by `| head`
        nobody_reads()
    except OSError as error:  # as of a full disk
        nobody_reads()
        return not_written(error)
    return 0


def flushed(status: int) -> int:
    """The exit status once everything is written that was asked for: the one given, if it could be."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        nobody_reads()
    except OSError as error:
        nobody_reads()
        return status or not_written(error)
    return status


def not_written(error: OSError) -> int:
    return refuse(f"what was asked for cannot be written to standard output: {error.strerror}")


def refuse(message: str) -> int:
    """One sentence for the operator, or one a line, and the exit status. Where programs read the log it is one of its
    lines, and no less grave than others: it says why nothing is served."""
    lines = [short_line(line) for line in message.split("\n")]
    if style_of(logging.getLogger()) in (LogStyle.JSON, LogStyle.JOURNAL):
        for line in lines:
            logger.critical("%s", line)
    else:
        with suppress(OSError):  # the status says it as well
            print("trillm: " + "\n".join(safe(line) for line in lines), file=sys.stderr)  # noqa: T201
    return 1


def short_line(line: str) -> str:
    return line if len(line) <= MOST_CHARACTERS else line[:MOST_CHARACTERS] + "…"
