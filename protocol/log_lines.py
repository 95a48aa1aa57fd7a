"""How a line of the log is written, in every process, whatever is told in it: the one place that decides it.

app/logs.py picks the style for the first process, actors/process.py hands it on, actors/child.py takes it up. What
clients send may stand in what is logged: here it loses whatever could end a line, or move a terminal.
"""

from __future__ import annotations

import json
import logging
import os
import re
import traceback
from collections.abc import Callable
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol, final

from protocol.ids import RequestId


class LogStyle(StrEnum):
    """What a line looks like."""

    TEXT = "text"
    """With date and time."""
    SHORT = "short"
    """With the time of day: for somebody who looks on."""
    COLOUR = "colour"
    """The same in colours."""
    JOURNAL = "journal"
    """<PRIORITY> first, and no time: journald has that."""
    JSON = "json"
    """One object a line."""


class RequestNames(Protocol):
    """What a request is called in the log."""

    label: str
    """The client's X-Request-Id, or one of our own."""
    answer_id: str
    """The id in the answer's body; "-" before there is one."""
    trace_id: str
    """Of the trace that it is part of; "-" if there are no traces."""
    engine_requests: list[RequestId]
    """What engines and output handlers call its sequences."""


REQUEST: ContextVar[RequestNames | None] = ContextVar("trillm_request", default=None)
"""On whose behalf this task works. Tasks and threads that it starts inherit it."""


def on_nobodys_behalf(start: Callable[..., object], *arguments: object) -> None:
    """Start a task that outlives the request which needs it first: what it logs and is traced for is not that one's."""
    Context().run(start, *arguments)


FIRST_PROCESS = "app"
"""Called so where actors have names."""
OF_DAY = "%H:%M:%S"

_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_COLOURS = {
    logging.DEBUG: "2",
    logging.INFO: "32",
    logging.WARNING: "33",
    logging.ERROR: "31",
    logging.CRITICAL: "1;31",
}
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # controls, of which C1's move a terminal, too
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"  # line ends and changes of direction
)
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "request_id"}
"""Attributes of any record; what else there is was given as `extra`."""


def unsafe(character: str) -> bool:
    """Whether it could end a line, or move a terminal."""
    return _UNSAFE.match(character) is not None


def safe(text: str) -> str:
    r"""In one line, with what controls a terminal escaped as in "\n" and "\x1b"."""
    if text.isprintable():  # which all that is unsafe is not, and most lines are
        return text
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@final
class LineFormatter(logging.Formatter):
    """Of one process. `extra={"request_id": …}` names a request where REQUEST does not know it, as in an actor; other
    extras are fields of JSON."""

    def __init__(self, style: LogStyle, actor: str = FIRST_PROCESS) -> None:
        super().__init__()
        self.style = style
        self.actor = actor

    def format(self, record: logging.LogRecord) -> str:
        if self.style is LogStyle.JSON:
            return self._json(record)
        name = record.name if self.actor == FIRST_PROCESS else self.actor
        head = self._head(record, safe(name))
        lines = [head + labelled(safe(record.getMessage()), record), *self._trace(record)]
        if self.style is LogStyle.JOURNAL:  # journald makes an entry of each line
            priority = f"<{_PRIORITIES.get(record.levelno, 6)}>"
            lines = [priority + line for line in lines]
        return "\n".join(lines)

    def _head(self, record: logging.LogRecord, name: str) -> str:
        level = record.levelname
        match self.style:
            case LogStyle.JOURNAL:
                return f"{name}: "
            case LogStyle.SHORT:
                return f"{self.formatTime(record, OF_DAY)} {level} {name}: "
            case LogStyle.COLOUR:
                at, colour = self.formatTime(record, OF_DAY), _COLOURS.get(record.levelno, "0")
                return f"\x1b[2m{at}\x1b[0m \x1b[{colour}m{level}\x1b[0m \x1b[2m{name}:\x1b[0m "
            case _:
                return f"{self.formatTime(record)} {level} {name}: "

    def _trace(self, record: logging.LogRecord) -> list[str]:
        """Each line further in than any line of the log, so that an error's text cannot pass for one."""
        return ["  " + safe(line) for line in traced(record).splitlines()]

    def _json(self, record: logging.LogRecord) -> str:
        names = REQUEST.get()
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "actor": self.actor,
            "pid": os.getpid(),
        }
        if (request_id := request_of(record)) is not None:
            told["request_id"] = request_id
        if names is not None and names.answer_id != "-":
            told["answer_id"] = names.answer_id
        if names is not None and names.trace_id != "-":
            told["trace_id"] = names.trace_id
        if trace := traced(record):
            told["traceback"] = trace
        extras = {name: value for name, value in vars(record).items() if name not in _USUAL and name not in told}
        return json.dumps(told | extras, default=str)  # ASCII only: no terminal is moved by it


def request_of(record: logging.LogRecord) -> str | None:
    """What the request is called that this was logged for."""
    if isinstance(given := vars(record).get("request_id"), str):
        return given
    names = REQUEST.get()
    return None if names is None else names.label


def labelled(message: str, record: logging.LogRecord) -> str:
    """With the request's names before it, unless it tells them itself."""
    names, request_id = REQUEST.get(), request_of(record)
    told = [] if request_id is None or request_id in message else [safe(request_id)]
    if names is not None and names.answer_id != "-" and names.answer_id not in message:
        told.append(safe(names.answer_id))
    return f"[{' '.join(told)}] {message}" if told else message


def traced(record: logging.LogRecord) -> str:
    """The traceback, and the stack if that was asked for; "" without."""
    parts = []
    if record.exc_info and record.exc_info[1] is not None:
        parts.append("".join(traceback.format_exception(record.exc_info[1])).rstrip("\n"))
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)


def log_lines(level: int, formatter: LineFormatter, handler: logging.Handler, *, force: bool = False) -> None:
    """All of this process's log goes to this handler, so written, with what Python warns of; with `force` to no other
    handler."""
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=force)
    logging.captureWarnings(True)


def style_of(logger: logging.Logger) -> LogStyle:
    """As its lines are written; plain text where somebody else has set it up."""
    formatters = (handler.formatter for handler in logger.handlers)
    ours = (formatter.style for formatter in formatters if isinstance(formatter, LineFormatter))
    return next(ours, LogStyle.TEXT)
