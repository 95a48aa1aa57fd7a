"""How the log is written, and what of others' is not for it. Used by the commands, hypercorn's and API servers."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, TextIO

from app import accept_complaints
from protocol.log_lines import LineFormatter, LogStyle, log_lines

LogFormat = Literal["auto", "text", "json"]


def set_up_logging(level: str, log_format: LogFormat = "auto") -> None:
    """To stderr; also what nobody has caught."""
    style = pick_style(log_format, sys.stderr, os.environ)
    log_lines(logging.getLevelNamesMapping()[level.upper()], LineFormatter(style), logging.StreamHandler(sys.stderr))
    sys.excepthook = log_uncaught
    quieten_libraries()


def log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """In the log's own style, as the rest: what ends this process is the one line that nobody should miss."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        logging.getLogger("trillm").critical("this process cannot go on", exc_info=error)


def pick_style(log_format: LogFormat, stream: TextIO, environment: Mapping[str, str]) -> LogStyle:
    """What suits who reads this stream."""
    if log_format == "json":
        return LogStyle.JSON
    if log_format == "text":
        return LogStyle.TEXT
    if is_journal(stream, environment):
        return LogStyle.JOURNAL
    if not stream.isatty():
        return LogStyle.TEXT
    return LogStyle.COLOUR if takes_colours(environment) else LogStyle.SHORT


def is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether it goes to journald, which names its stream by device and inode: of a process in between, not ours."""
    if (named := environment.get("JOURNAL_STREAM")) is None:
        return False
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # also of a stream without a descriptor
        return False
    return named == f"{status.st_dev}:{status.st_ino}"


def takes_colours(environment: Mapping[str, str]) -> bool:
    """Of a terminal: https://no-color.org, and those that take no escape codes at all."""
    return not environment.get("NO_COLOR") and environment.get("TERM", "dumb") != "dumb"


def is_drawable(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether it is a terminal that takes escape codes."""
    return stream.isatty() and environment.get("TERM", "dumb") != "dumb"


def leave_hypercorn_its_lines() -> None:
    """Its command has a handler of its own for what it logs, and ours would say the same again."""
    theirs = logging.getLogger("hypercorn.error")
    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda record: record.name != theirs.name or not theirs.handlers)


def quieten_libraries() -> None:
    """What others log that is not for this log."""
    for library in ("httpx", "httpx2", "httpcore2", "hpack", "h2"):  # hpack tells each header at debug: keys, too
        logging.getLogger(library).setLevel(logging.WARNING)
    logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)  # that clients' tracestate is malformed
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # tracebacks of what app/tools tells in a sentence
    logging.getLogger(accept_complaints.LOGGER).addFilter(accept_complaints.OneLineASecond())
