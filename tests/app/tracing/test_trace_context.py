"""A caller's trace, as W3C Trace Context has it, and nothing of what only looks like it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.tracing.trace_context import MAX_STATE_LENGTH, TraceContext, read_trace_context

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE_ID}-{SPAN_ID}-01"
EXPECTED = TraceContext(int(TRACE_ID, 16), int(SPAN_ID, 16), True)


def read(*values: str | bytes, state: tuple[bytes, ...] = ()) -> TraceContext | None:
    raw = [value.encode("latin-1") if isinstance(value, str) else value for value in values]
    headers = [(b"Traceparent", value) for value in raw] + [(b"tracestate", value) for value in state]
    return read_trace_context([(b"host", b"x"), *headers, (b"baggage", b"user=me")])


def test_a_caller_s_span_is_found_and_said_again_as_it_was() -> None:
    assert read(GOOD) == read(f" {GOOD}\t") == EXPECTED
    assert EXPECTED.traceparent == GOOD
    assert read_trace_context([]) is None


@pytest.mark.parametrize(("flags", "is_sampled"), [("00", False), ("01", True), ("02", False), ("03", True)])
def test_only_the_last_flag_says_whether_it_is_recorded(flags: str, is_sampled: bool) -> None:
    found = read(f"00-{TRACE_ID}-{SPAN_ID}-{flags}")

    assert found is not None
    assert found.is_sampled == is_sampled


def test_a_later_version_may_say_more_and_this_one_may_not() -> None:
    assert read(f"cc-{TRACE_ID}-{SPAN_ID}-01-what-the-future-will-be-like") == EXPECTED
    assert read(f"cc-{TRACE_ID}-{SPAN_ID}-01.what") is None
    assert read(f"{GOOD}-more") is None
    assert read(f"ff-{TRACE_ID}-{SPAN_ID}-01") is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        GOOD.upper(),
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID[:-1]}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-1",
        f"00-{TRACE_ID}-{SPAN_ID}",
        GOOD + "\n",
        GOOD.replace("-", "_"),
    ],
)
def test_what_is_malformed_is_no_caller(value: str) -> None:
    assert read(value) is None


def test_two_callers_are_none() -> None:
    assert read(GOOD, GOOD) is None


def test_the_state_is_handed_on_if_it_is_not_too_long() -> None:
    found = read(GOOD, state=(b"a=1", b"b=2"))
    assert found is not None
    assert found.state == "a=1,b=2"
    for state in (b"a=" + b"x" * MAX_STATE_LENGTH, b"\xff=1"):
        found = read(GOOD, state=(state,))
        assert found == EXPECTED


@given(st.one_of(st.text(max_size=80), st.from_regex(re.compile(r"[0-9a-f-]{0,60}"), fullmatch=True)))
def test_any_text_is_read_as_opentelemetry_reads_it(value: str) -> None:
    value = value.encode("latin-1", "ignore").decode("latin-1")
    ours = read(value)
    theirs = get_current_span(TraceContextTextMapPropagator().extract({"traceparent": value})).get_span_context()

    assert ours is None or (ours.trace_id, ours.span_id) == (theirs.trace_id, theirs.span_id)


@given(st.binary(max_size=700), st.binary(max_size=700))
def test_no_bytes_are_too_odd(value: bytes, state: bytes) -> None:
    read_trace_context([(b"traceparent", value), (b"tracestate", state)])
    found = read(GOOD, state=(state,))

    assert found is not None
    assert len(found.state) <= MAX_STATE_LENGTH
