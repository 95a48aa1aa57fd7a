"""From a timeline to spans."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from app.tracing.sequence import TracedSequence, phases
from app.tracing.span import SpanRecord
from protocol.timeline import Timeline

LINE = Timeline(1.0, 2.0, 4.0, 9.0, 1, 0.5)


def sequence(timeline: Timeline | None = LINE, ended: float | None = 9.25, num_tokens: int = 5) -> TracedSequence:
    return TracedSequence(10, 4, num_tokens, None if ended is None else "stop", 3, timeline, ended)


def times(spans: list[SpanRecord]) -> list[tuple[str, float, float]]:
    return [(span.name, span.began, span.ended) for span in spans]


def test_each_phase_is_a_span_and_one_begins_where_the_last_one_ends() -> None:
    spans = phases(sequence(), 0.5, 10.0)

    assert times(spans) == [
        ("queue", 1.0, 2.0),
        ("prefill", 2.0, 4.0),
        ("decode", 4.0, 9.0),
        ("detokenise", 4.0, 4.5),
        ("deliver", 9.0, 9.25),
    ]
    assert spans[1].attributes == {"trillm.num_computed_tokens": 6}
    assert spans[3].attributes == {"trillm.summed": True, "trillm.seconds": 0.5}


def test_one_token_is_not_decoded() -> None:
    spans = phases(sequence(Timeline(1.0, 2.0, 4.0, 4.0), 5.0), 0.5, 10.0)

    assert [span.name for span in spans] == ["queue", "prefill", "deliver"]


def test_who_never_had_a_place_was_queued_all_the_time() -> None:
    [span] = phases(sequence(None, None, 0), 1.0, 6.0)

    assert (span.name, span.began, span.ended) == ("queue", 1.0, 6.0)
    assert span.attributes == {"trillm.unfinished": True}


def test_who_was_left_while_it_was_decoded_has_decoded_until_then() -> None:
    spans = phases(sequence(Timeline(1.0, 2.0, 4.0, 4.0), None), 0.5, 10.0)

    assert times(spans)[-1] == ("decode", 4.0, 10.0)
    assert spans[-1].attributes["trillm.unfinished"] is True


@given(st.lists(st.floats(-10, 30), min_size=8, max_size=8), st.booleans())
def test_whatever_clocks_say_spans_lie_within_their_bounds(at: list[float], is_over: bool) -> None:
    began, ended = sorted(at[:2])
    line = Timeline(at[2], at[3], at[4], at[5], 0, abs(at[6]))
    spans = phases(sequence(line, at[7] if is_over else None), began, ended)

    assert all(began <= span.began <= span.ended <= ended for span in spans)
    chain = [span for span in spans if span.name != "detokenise"]
    assert all(before.ended == after.began for before, after in itertools.pairwise(chain))
