"""The output handler tells when a request reached which point."""

from __future__ import annotations

import msgspec

from actors.output.processor import OutputProcessor
from actors.output.vocabulary import Vocabulary
from protocol.messages import FinishReason, RequestOutput
from protocol.timeline import Timeline, then
from tests.helpers.engine_outputs import core_output, core_outputs, core_request
from tests.helpers.small_tokenizers import byte_level_tokenizer

VOCABULARY = Vocabulary(byte_level_tokenizer())
REQUEST = msgspec.structs.replace(core_request(), arrival_time=1.0)


def deltas(processor, *frames) -> list[RequestOutput]:
    """Of outputs with the times at which they were published."""
    told = []
    for at, output in frames:
        told += processor.process(msgspec.structs.replace(core_outputs(output), at=at)).outputs
    return told


def test_the_first_and_the_last_delta_tell_and_those_between_do_not():
    processor = OutputProcessor(VOCABULARY)
    processor.register(REQUEST)
    first, middle, last = deltas(
        processor,
        (3.0, core_output(0, [70], scheduled_at=2.0)),
        (4.0, core_output(1, [71])),
        (5.0, core_output(2, [72], finish_reason=FinishReason.LENGTH, num_preemptions=2)),
    )

    assert first.timeline == Timeline(1.0, 2.0, 3.0, 3.0)
    assert middle.timeline is None
    assert last.timeline == Timeline(1.0, 2.0, 3.0, 5.0, 2)


def test_an_output_handler_that_was_started_in_between_tells_of_the_end():
    processor = OutputProcessor(VOCABULARY)
    processor.register(msgspec.structs.replace(REQUEST, continuation_token_ids=[70]))
    middle, last = deltas(
        processor,
        (4.0, core_output(1, [71])),
        (5.0, core_output(2, [72], finish_reason=FinishReason.LENGTH, scheduled_at=2.0)),
    )

    assert middle.timeline is None
    assert then(Timeline(1.0, 2.0, 3.0, 3.0), last.timeline) == Timeline(1.0, 2.0, 3.0, 5.0)


def test_an_end_by_a_stop_string_tells_too():
    processor = OutputProcessor(VOCABULARY)
    request = msgspec.structs.replace(core_request(stop=["!"]), arrival_time=1.0)
    processor.register(request)
    token_id = byte_level_tokenizer().encode("!").ids[0]
    [only] = deltas(processor, (3.0, core_output(0, [token_id], scheduled_at=2.0)))

    assert only.finish_reason is FinishReason.STOP
    assert only.timeline == Timeline(1.0, 2.0, 3.0, 3.0)


def test_what_came_before_its_request_keeps_its_time():
    processor = OutputProcessor(VOCABULARY)
    assert deltas(processor, (3.0, core_output(0, [70], scheduled_at=2.0))) == []
    [first] = processor.register(REQUEST).outputs

    assert first.timeline == Timeline(1.0, 2.0, 3.0, 3.0)


def test_a_request_that_was_never_scheduled_has_no_timeline():
    processor = OutputProcessor(VOCABULARY)
    processor.register(REQUEST)
    [end] = deltas(processor, (3.0, core_output(0, [], finish_reason=FinishReason.ERROR, error="no")))

    assert end.timeline is None


def test_a_later_timeline_moves_only_the_end():
    earlier, later = Timeline(1.0, 2.0, 3.0, 4.0, 1), Timeline(1.0, 7.0, 8.0, 9.0, 0)

    assert then(earlier, later) == Timeline(1.0, 2.0, 3.0, 9.0, 1)
    assert then(None, later) is later
    assert then(earlier, None) is earlier


def test_a_traced_request_is_told_how_long_its_text_took():
    ticks = iter(range(100))
    processor = OutputProcessor(VOCABULARY, clock=lambda: float(next(ticks)))
    processor.register(msgspec.structs.replace(REQUEST, is_traced=True))
    first, middle, last = deltas(
        processor,
        (3.0, core_output(0, [70], scheduled_at=2.0)),
        (4.0, core_output(1, [71])),
        (5.0, core_output(2, [72], finish_reason=FinishReason.LENGTH)),
    )

    assert first.timeline == Timeline(1.0, 2.0, 3.0, 3.0, detokenising=1.0)
    assert middle.timeline is None
    assert last.timeline == Timeline(1.0, 2.0, 3.0, 5.0, detokenising=3.0)
    assert then(first.timeline, last.timeline) == last.timeline


def test_nobody_reads_a_clock_for_what_is_not_traced():
    def clock() -> float:
        raise AssertionError

    processor = OutputProcessor(VOCABULARY, clock)
    processor.register(REQUEST)

    assert len(deltas(processor, (3.0, core_output(0, [70], scheduled_at=2.0)))) == 1
