"""A line of the log: what it has in each style, and that nothing that was sent to us can forge another one."""

from __future__ import annotations

import json
import logging
import re
import sys
from contextvars import ContextVar

import attrs
import pytest
import trio
import trio.testing

from protocol.ids import RequestId
from protocol.log_lines import REQUEST, LineFormatter, LogStyle, on_nobodys_behalf, safe, style_of


@attrs.define
class Names:
    label: str
    answer_id: str = "-"
    trace_id: str = "-"
    engine_requests: list[RequestId] = attrs.field(factory=list)


def record(message: str, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    usual = {"name": "trillm.http", "levelno": level, "levelname": logging.getLevelName(level), "msg": message}
    return logging.makeLogRecord(usual | extra)


def line(style: LogStyle, made: logging.LogRecord, actor: str = "app") -> str:
    return LineFormatter(style, actor).format(made)


def raised(text: str) -> logging.LogRecord:
    try:
        raise ValueError(text)
    except ValueError:
        return record("it failed", logging.ERROR, exc_info=sys.exc_info())


@pytest.mark.parametrize(
    ("style", "pattern"),
    [
        (LogStyle.TEXT, r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO trillm\.http: hello"),
        (LogStyle.SHORT, r"\d\d:\d\d:\d\d INFO trillm\.http: hello"),
        (LogStyle.COLOUR, r"\x1b\[2m\d\d:\d\d:\d\d\x1b\[0m \x1b\[32mINFO\x1b\[0m \x1b\[2mtrillm\.http:\x1b\[0m hello"),
        (LogStyle.JOURNAL, r"<6>trillm\.http: hello"),
    ],
)
def test_a_line_of_each_style(style: LogStyle, pattern: str) -> None:
    assert re.fullmatch(pattern, line(style, record("hello")))


def test_an_actor_s_lines_have_its_name() -> None:
    assert line(LogStyle.JOURNAL, record("hello"), "engine-0") == "<6>engine-0: hello"


@pytest.mark.parametrize(("level", "priority"), [(10, 7), (20, 6), (30, 4), (40, 3), (50, 2)])
def test_journald_gets_the_level_as_a_priority(level: int, priority: int) -> None:
    assert line(LogStyle.JOURNAL, record("hello", level)).startswith(f"<{priority}>")


def test_json_has_what_a_line_is_made_of_and_its_fields() -> None:
    told = json.loads(line(LogStyle.JSON, record("hello\nyou", logging.WARNING, status=404), "engine-0"))

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("time"))
    assert told.pop("pid") > 0
    assert told == {
        "level": "warning",
        "logger": "trillm.http",
        "message": "hello\nyou",
        "actor": "engine-0",
        "status": 404,
    }


def test_a_field_cannot_take_the_place_of_what_every_line_has() -> None:
    assert json.loads(line(LogStyle.JSON, record("hello", level="high", actor="me", time="never")))["actor"] == "app"


@pytest.mark.parametrize("style", list(LogStyle))
@pytest.mark.parametrize("sent", ["\n", "\r", "\x1b[2J", "\x9b2J", "\u2028", "\u202e", "\x00", "\x7f", "\x85", "\x08"])
def test_nothing_that_is_logged_ends_a_line_or_moves_a_terminal(style: LogStyle, sent: str) -> None:
    for made in (record(f"a{sent}b"), record("a", request_id=f"x{sent}y")):
        written = line(style, made).replace("\x1b[0m", "")
        assert sent not in written
        assert len(written.splitlines()) == 1


@pytest.mark.parametrize("style", [style for style in LogStyle if style is not LogStyle.JSON])
def test_no_line_of_a_traceback_passes_for_one_of_the_log(style: LogStyle) -> None:
    first, *rest = line(style, raised("bad\n2026-01-01 00:00:00,000 INFO trillm: all is well\x1b[2J")).splitlines()

    assert "it failed" in first
    assert any("all is well" in one for one in rest)
    assert all(one.removeprefix("<3>").startswith("  ") for one in rest)
    assert not any("\x1b" in one for one in rest)
    if style is LogStyle.JOURNAL:
        assert all(one.startswith("<3>") for one in rest)


def test_a_traceback_is_in_the_one_line_of_json() -> None:
    written = line(LogStyle.JSON, raised("bad\nworse"))

    assert "\n" not in written
    assert json.loads(written)["traceback"].endswith("ValueError: bad\nworse")


def test_what_is_no_unicode_is_written_all_the_same() -> None:
    assert json.loads(line(LogStyle.JSON, record("a\udc80")))["message"] == "a\udc80"
    assert safe("ü 船 a\udc80").startswith("ü 船 a")


async def test_what_is_logged_for_a_request_has_its_names_also_from_its_tasks_and_threads() -> None:
    lines: list[str] = []

    async def log() -> None:
        lines.append(line(LogStyle.JOURNAL, record("hello")))
        lines.append(await trio.to_thread.run_sync(line, LogStyle.JOURNAL, record("from a thread")))

    names = Names("mine")
    async with trio.open_nursery() as others, trio.open_nursery() as nursery:
        token = REQUEST.set(names)
        await log()
        names.answer_id = "cmpl-1"
        nursery.start_soon(log)
        await trio.testing.wait_all_tasks_blocked()
        REQUEST.reset(token)
        token = REQUEST.set(names)
        on_nobodys_behalf(others.start_soon, log)
        REQUEST.reset(token)

    assert lines[:2] == ["<6>trillm.http: [mine] hello", "<6>trillm.http: [mine] from a thread"]
    assert sorted(lines[2:]) == [
        "<6>trillm.http: [mine cmpl-1] from a thread",
        "<6>trillm.http: [mine cmpl-1] hello",
        "<6>trillm.http: from a thread",
        "<6>trillm.http: hello",
    ]


async def test_nothing_of_a_request_goes_with_a_task_that_outlives_it() -> None:
    other: ContextVar[str] = ContextVar("other", default="nobody's")
    found: list[str] = []

    async def look() -> None:
        found.append(other.get())

    async with trio.open_nursery() as nursery:
        other.set("a request's span")
        on_nobodys_behalf(nursery.start_soon, look)
    assert found == ["nobody's"]


def test_names_that_a_line_tells_itself_are_told_once() -> None:
    token = REQUEST.set(Names("mine", "cmpl-1", "0af7"))
    try:
        assert line(LogStyle.JOURNAL, record("mine cmpl-1 ended")) == "<6>trillm.http: mine cmpl-1 ended"
        told = json.loads(line(LogStyle.JSON, record("hello")))
    finally:
        REQUEST.reset(token)
    assert (told["request_id"], told["answer_id"], told["trace_id"]) == ("mine", "cmpl-1", "0af7")


def test_an_actor_names_the_request_that_it_logs_about() -> None:
    assert line(LogStyle.JOURNAL, record("hello", request_id="r7"), "engine-0") == "<6>engine-0: [r7] hello"


def test_children_are_told_the_style_of_their_parent() -> None:
    logger = logging.Logger("root")
    assert style_of(logger) is LogStyle.TEXT
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(LogStyle.JSON))
    logger.addHandler(handler)
    assert style_of(logger) is LogStyle.JSON
