"""Events that a shared stream can do with, however they arrive; others are errors of the calls that they answer."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.bounded_body import BodyLimits
from app.tools.incoming_message import MAX_SKIPPED_BYTES, answered_id
from app.tools.small_events import EventReader
from app.tools.tool_error import ToolError

LIMITS = BodyLimits(2000, 100)
VERSION = {"jsonrpc": "2.0"}
RESULT = {"result": {"content": [{"type": "text", "text": "x" * 4000}], "structuredContent": {"id": 4}}}
PARAMS = {"method": "sampling/createMessage", "params": {"text": "x" * 4000}}


def fed(reader: EventReader, data: bytes, size: int) -> bytes:
    return b"".join(reader.feed(data[at : at + size]) for at in range(0, len(data), size))


def event(message: object) -> bytes:
    return b"event: message\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n"


@given(
    st.lists(st.sampled_from([b"data: {}", b": ping", b"", b"", b"id: 1", b"data: " + b"x" * 300]), max_size=20),
    st.lists(st.sampled_from([b"\n", b"\r", b"\r\n"]), min_size=20, max_size=20),
    st.integers(1, 400),
)
def test_small_events_come_through_as_they_are_and_none_waits_for_the_next(lines, ends, size) -> None:
    data = b"".join(line + end for line, end in zip(lines, ends, strict=False))
    reader = EventReader(BodyLimits(10_000, 100))

    told = fed(reader, data + b"data: 1\n\n", size)

    assert told == data + b"data: 1\n\n"
    assert not reader.skips


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
@pytest.mark.parametrize(
    "message",
    [
        VERSION | {"id": 3} | RESULT,
        {"id": 3} | VERSION | RESULT,
        RESULT | VERSION | {"id": 3},
        VERSION | RESULT | {"id": 3},
        RESULT | {"id": 3} | VERSION,
    ],
)
def test_what_is_too_large_is_an_error_of_the_call_that_it_answers(message, size) -> None:
    small = event({"id": 9})

    told = fed(EventReader(LIMITS), small + event(message) + small, size)

    first, second, replaced, *rest = filter(None, told.splitlines())
    assert [first, second] == rest == [b"event: message", b'data: {"id": 9}']
    error = json.loads(replaced.removeprefix(b"data: "))
    assert error["id"] == 3
    [told_size] = re.findall(r"(\d+) bytes, and at most 2000 are taken", error["error"]["message"])
    assert int(told_size) == pytest.approx(len(event(message)), abs=1)  # a line's end may count with what is after it


def test_many_values_are_too_large_as_well() -> None:
    told = EventReader(LIMITS).feed(event(VERSION | {"id": "a", "result": {"n": [1] * 200}}))

    assert b'"id":"a"' in told
    assert b"at most 100 are taken" in told


@pytest.mark.parametrize(
    "message",
    [
        VERSION | {"id": 3} | PARAMS,
        PARAMS | VERSION | {"id": 3},
        VERSION | PARAMS,
        {"result": {"id": 3, "text": "x" * 4000}},
        RESULT | {"id": None},
        "x" * 4000,
    ],
)
def test_what_is_too_large_and_answers_no_call_breaks_the_stream(message) -> None:
    with pytest.raises(ToolError, match="answers no call"):
        EventReader(LIMITS).feed(event(message))


def test_an_event_without_end_breaks_the_stream() -> None:
    reader = EventReader(LIMITS)
    part = b"x" * 2**20

    with pytest.raises(ToolError, match=str(MAX_SKIPPED_BYTES)):
        for _ in range(MAX_SKIPPED_BYTES // len(part) + 1):
            reader.feed(part)


def test_an_id_within_the_answer_is_not_the_answer_s() -> None:
    assert answered_id(b'{"result":{"id":5,', b'"text":"id","id":5}}') is None
    assert answered_id(b'{"result":{"text":"\\"id\\":5', b'"},"id":6}') == b"6"
