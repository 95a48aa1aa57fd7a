"""What is noted of a request, which is bounded, and what of it is told of an engine's death."""

from __future__ import annotations

from attrs import evolve
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from app.engine import Prompt
from app.incidents import Incidents
from app.journal import Entry
from app.mailbox import ActorGeneration
from app.replays import Replays
from app.tracing.otel import OtelSource
from app.tracing.request_trace import MAX_EVENTS, MAX_SEQUENCES, MAX_SEQUENCES_IN_ALL, Outcome, RequestTrace
from app.tracing.sequence import TracedSequence
from protocol.ids import EngineIndex, Epoch, RequestId
from protocol.sampling import SamplingParams
from protocol.timeline import Timeline

SEQUENCE = TracedSequence(1, 0, 1, "stop", 0, None, 1.0)


def begin(spans: list[ReadableSpan]) -> tuple[OtelSource, RequestTrace]:
    source = OtelSource(Resource({}), spans.append, "1", lambda: 1.0)
    return source, source.begin(None, {})


def test_however_long_a_response_goes_on_its_notes_are_bounded() -> None:
    spans: list[ReadableSpan] = []
    source, trace = begin(spans)
    for _ in range(300):
        trace.note_generation(1.0, [SEQUENCE] * 40)
        trace.note_phase("tokenise", 1.0, 1.0)
        trace.interrupted("engine-0 epoch 1")
    source.end(trace, Outcome(1.0, {}))

    assert trace.num_sequences == 300 * 40
    assert trace.num_untold == trace.num_sequences - MAX_SEQUENCES_IN_ALL
    assert len(trace.generations) * MAX_SEQUENCES == MAX_SEQUENCES_IN_ALL
    assert len(spans) < 1000
    assert len([span for span in spans if span.name == "sequence"]) == MAX_SEQUENCES_IN_ALL
    assert len(spans[-1].events) == MAX_EVENTS


def test_a_sequence_that_was_left_lasts_as_long_as_the_last_of_its_phases() -> None:
    spans: list[ReadableSpan] = []
    source, trace = begin(spans)
    trace.clock = lambda: 9.0
    left = evolve(SEQUENCE, finish_reason=None, ended=None, timeline=Timeline(2.0, 3.0, 4.0, 4.0, 0, 0.5))
    trace.note_generation(1.5, [left, left])
    source.end(trace, Outcome(10.0, {}))

    whole = [span for span in spans if span.name == "sequence"]
    decoded = [span for span in spans if span.name == "decode"]
    assert len(whole) == len(decoded) == 2
    assert {span.end_time for span in whole} == {span.end_time for span in decoded}


def test_who_loses_its_engine_says_where_it_goes_on_and_after_how_much() -> None:
    spans: list[ReadableSpan] = []
    source, trace = begin(spans)
    request_id = RequestId("a")
    prompt = Prompt([1], SamplingParams(max_tokens=9, seed=0))
    entry = Entry(request_id, prompt, ActorGeneration([request_id]), 0.0, trace=trace, token_ids=[5, 6])
    replays = Replays({request_id: entry}, Incidents())
    first, second = (EngineIndex(0), Epoch(1)), (EngineIndex(1), Epoch(4))
    entry.send_to(first, 0)
    assert entry.request(Epoch(1)).is_traced
    assert replays.lose(first, is_innocent=True) == []
    entry.send_to(second, 0)
    replays.send_home("output-0")
    entry.send_to(second, 0)
    source.end(trace, Outcome(1.0, {}))

    assert [(event.name, dict(event.attributes)) for event in spans[0].events] == [
        ("interrupted", {"trillm.lost": "engine-0 epoch 1"}),
        (
            "replay",
            {"trillm.lost": "engine-0 epoch 1", "trillm.engine": "engine-1 epoch 4", "trillm.num_tokens_told": 2},
        ),
        ("interrupted", {"trillm.lost": "output-0"}),
        ("replay", {"trillm.lost": "output-0", "trillm.engine": "engine-1 epoch 4", "trillm.num_tokens_told": 2}),
    ]
