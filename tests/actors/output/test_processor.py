from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.output import processor as processor_module
from actors.output.processor import OutputProcessor
from actors.output.vocabulary import Vocabulary
from protocol.messages import FinishReason, TokenLogprobs
from protocol.sampling import Grammar
from tests.helpers.dummy_checkpoint import IM_END
from tests.helpers.engine_outputs import core_output, core_outputs, core_request
from tests.helpers.small_tokenizers import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER)
EOS = TOKENIZER.token_to_id(IM_END)
BAD = -1
"""An id that makes the detokenizer raise."""


def ids_of(text):
    return TOKENIZER.encode(text).ids


def byte_ids(text):
    """One token for each byte."""
    return [VOCABULARY.table.index(bytes([byte])) for byte in text.encode()]


def started(*requests):
    processor = OutputProcessor(VOCABULARY)
    for request in requests or (core_request(),):
        assert processor.register(request).outputs == []
    return processor


def stream(processor, token_ids, *, start=0, request_id="a", **last):
    """One token a step; `last` are fields of the last output. All that is said until the request has ended."""
    deltas, aborts = [], []
    for index, token_id in enumerate(token_ids):
        fields = last if index == len(token_ids) - 1 else {}
        output = core_output(start + index, [token_id], request_id, **fields)
        processed = processor.process(core_outputs(output))
        assert processed.resync == {}
        deltas += processed.outputs
        aborts += processed.aborts
    return deltas, aborts


def text_of(deltas):
    return "".join(delta.text for delta in deltas)


def tokens_of(deltas):
    return [token_id for delta in deltas for token_id in delta.token_ids]


def test_deltas_join_to_the_text_and_to_the_tokens():
    ids = ids_of("How many boats? 船 🎉!")
    deltas, aborts = stream(started(), ids, finish_reason=FinishReason.LENGTH)
    assert text_of(deltas) == "How many boats? 船 🎉!"
    assert tokens_of(deltas) == ids
    assert [delta.offset for delta in deltas] == list(range(len(ids)))
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [FinishReason.LENGTH]
    assert aborts == []


def test_a_request_that_ended_is_forgotten_and_its_late_outputs_are_ignored():
    processor = started()
    stream(processor, ids_of("yes"), finish_reason=FinishReason.LENGTH)
    assert processor.offsets() == {}
    assert processor.process(core_outputs(core_output(0, [3]))).outputs == []
    assert processor.register(core_request()).outputs == []


def test_the_text_of_the_token_that_ended_it_is_left_out():
    stop = ids_of(".")[0]
    request = core_request(eos_token_ids=[EOS], stop_token_ids=[stop])
    deltas, _ = stream(started(request), [*ids_of("yes"), EOS], finish_reason=FinishReason.STOP)
    assert text_of(deltas) == "yes"
    assert tokens_of(deltas)[-1] == EOS
    deltas, _ = stream(started(request), [*ids_of("yes"), stop], finish_reason=FinishReason.STOP, stop_reason=stop)
    assert text_of(deltas) == "yes"
    assert deltas[-1].stop_reason == stop


def test_the_last_token_of_a_completed_grammar_belongs_to_the_text():
    request = core_request(eos_token_ids=[EOS], grammar=Grammar("any"))
    deltas, _ = stream(started(request), ids_of('{"a": 1}'), finish_reason=FinishReason.STOP)
    assert text_of(deltas) == '{"a": 1}'


def test_the_text_of_the_token_that_ended_it_is_included_on_demand():
    stop = ids_of(".")[0]
    request = core_request(include_stop_str_in_output=True, stop_token_ids=[stop])
    deltas, _ = stream(started(request), [*ids_of("yes"), stop], finish_reason=FinishReason.STOP, stop_reason=stop)
    assert text_of(deltas) == "yes."


def test_a_character_that_is_incomplete_at_the_end_is_replaced():
    deltas, _ = stream(started(), byte_ids("a€")[:-1], finish_reason=FinishReason.LENGTH)
    assert text_of(deltas) == "a\ufffd"


def test_a_stop_string_ends_the_request_and_aborts_it_in_the_engine():
    ids = byte_ids("yes END and more")
    processor = started(core_request(stop=["XX", "END"]))
    deltas, aborts = stream(processor, ids)
    assert text_of(deltas) == "yes "
    assert tokens_of(deltas) == byte_ids("yes END")
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, "END")
    assert aborts == ["a"]
    assert processor.offsets() == {}


def test_tokens_after_the_stop_string_in_the_same_delta_are_dropped_with_their_logprobs():
    ids = byte_ids("yes END and more")
    logprobs = [TokenLogprobs([i], [-1.0], 1) for i in ids]
    processor = started(core_request(stop=["END"], logprobs=0))
    (delta,) = processor.process(core_outputs(core_output(0, ids, logprobs=logprobs))).outputs
    assert (delta.text, delta.token_ids) == ("yes ", byte_ids("yes END"))
    assert [position.chosen.token for position in delta.logprobs] == list("yes END")


def test_a_stop_string_in_the_engines_last_output_needs_no_abort():
    processor = started(core_request(stop=["END"]))
    output = core_output(0, byte_ids("yes END"), finish_reason=FinishReason.LENGTH)
    processed = processor.process(core_outputs(output))
    assert processed.outputs[0].finish_reason is FinishReason.STOP
    assert processed.outputs[0].stop_reason == "END"
    assert processed.aborts == []


def test_a_stop_string_is_included_on_demand():
    processor = started(core_request(stop=["END"], include_stop_str_in_output=True))
    assert text_of(stream(processor, byte_ids("yes END and more"))[0]) == "yes END"


def test_text_that_was_withheld_comes_at_the_end():
    deltas, _ = stream(started(core_request(stop=["END"])), byte_ids("yes EN"), finish_reason=FinishReason.LENGTH)
    assert text_of(deltas[:-1]) == "yes "
    assert deltas[-1].text == "EN"
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_a_stop_string_counts_only_beyond_the_first_min_tokens():
    processor = started(core_request(stop=["END"], min_tokens=3))
    deltas, _ = stream(processor, byte_ids("ENDEND!"))
    assert text_of(deltas) == "END"
    assert deltas[-1].stop_reason == "END"
    begun_before = started(core_request(stop=["END"], min_tokens=2))
    assert text_of(stream(begun_before, byte_ids("END!"))[0]) == ""


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 15)), max_size=10))
def test_repeats_and_overlaps_change_nothing(frames):
    """Each frame goes some tokens back, and then brings some; the last brings everything once more."""
    text = "boats? 船 🎉! The answer."
    ids = byte_ids(text)
    processor = started()
    deltas = []
    for back, count in [*frames, (len(ids), len(ids))]:
        offset = max(len(tokens_of(deltas)) - back, 0)
        end = min(offset + count, len(ids))
        finish_reason = FinishReason.LENGTH if end == len(ids) else None
        processed = processor.process(core_outputs(core_output(offset, ids[offset:end], finish_reason=finish_reason)))
        assert processed.resync == {}
        deltas += processed.outputs
    assert tokens_of(deltas) == ids
    assert text_of(deltas) == text
    assert [delta.finish_reason for delta in deltas].count(FinishReason.LENGTH) == 1


def test_the_logprobs_of_repeated_tokens_are_not_passed_on_again():
    processor = started(core_request(logprobs=0))
    ids = byte_ids("abc")
    logprobs = [TokenLogprobs([i], [-1.0], 1) for i in ids]
    processor.process(core_outputs(core_output(0, ids[:2], logprobs=logprobs[:2])))
    (delta,) = processor.process(core_outputs(core_output(0, ids, logprobs=logprobs))).outputs
    assert [position.chosen.token for position in delta.logprobs] == ["c"]


def test_nothing_is_asked_again_for_a_request_that_ends_in_the_same_frame():
    processor = started()
    gap, end = core_output(1, [3]), core_output(0, byte_ids("ab"), finish_reason=FinishReason.LENGTH)
    processed = processor.process(core_outputs(gap, end))
    assert text_of(processed.outputs) == "ab"
    assert processed.resync == {}


def test_a_gap_is_reported_once_and_not_applied():
    processor = started()
    ids = byte_ids("abcdef")
    stream(processor, ids[:2])
    first = processor.process(core_outputs(core_output(3, ids[3:4])))
    assert (first.outputs, first.resync) == ([], {"a": 2})
    second = processor.process(core_outputs(core_output(4, ids[4:5])))
    assert (second.outputs, second.resync) == ([], {})
    assert processor.offsets() == {"a": 2}
    (delta,) = processor.process(core_outputs(core_output(2, ids[2:], finish_reason=FinishReason.LENGTH))).outputs
    assert (delta.offset, delta.text) == (2, "cdef")


def test_a_second_gap_is_reported_too():
    processor = started()
    assert processor.process(core_outputs(core_output(1, [3]))).resync == {"a": 0}
    stream(processor, [3, 3])
    assert processor.process(core_outputs(core_output(3, [3]))).resync == {"a": 2}


def test_an_engines_error_ends_the_request_even_beyond_a_gap():
    processor = started()
    output = core_output(7, [], finish_reason=FinishReason.ERROR, error="not known any more")
    processed = processor.process(core_outputs(output))
    assert processed.outputs[0].finish_reason is FinishReason.ERROR
    assert processed.outputs[0].error == "not known any more"
    assert processed.aborts == []


def test_outputs_that_are_here_before_the_request_are_applied_when_it_comes():
    processor = OutputProcessor(VOCABULARY)
    ids = byte_ids("abc")
    processor.process(core_outputs(core_output(0, ids[:1])))
    processor.process(core_outputs(core_output(1, ids[1:], finish_reason=FinishReason.LENGTH)))
    processed = processor.register(core_request())
    assert text_of(processed.outputs) == "abc"
    assert processed.outputs[-1].finish_reason is FinishReason.LENGTH
    assert processor.offsets() == {}


def test_a_stop_string_in_early_outputs_aborts_at_registration():
    processor = OutputProcessor(VOCABULARY)
    processor.process(core_outputs(core_output(0, byte_ids("yes END"))))
    processed = processor.register(core_request(stop=["END"]))
    assert processed.outputs[-1].stop_reason == "END"
    assert processed.aborts == ["a"]


def test_early_outputs_are_bounded_and_those_not_kept_are_asked_for(monkeypatch):
    monkeypatch.setattr(processor_module, "MAX_EARLY_REQUESTS", 2)
    processor = OutputProcessor(VOCABULARY)
    for request_id in ("a", "b", "c"):
        processor.process(core_outputs(core_output(0, byte_ids("x"), request_id)))
    assert processor.register(core_request("a")).resync == {"a": 0}
    assert text_of(processor.register(core_request("b")).outputs) == "x"
    assert text_of(processor.register(core_request("c")).outputs) == "x"


def test_early_outputs_of_one_request_are_bounded_and_the_rest_is_asked_for(monkeypatch):
    monkeypatch.setattr(processor_module, "MAX_EARLY_OUTPUTS", 2)
    processor = OutputProcessor(VOCABULARY)
    for index, token_id in enumerate(byte_ids("abcd")):
        processor.process(core_outputs(core_output(index, [token_id])))
    processed = processor.register(core_request())
    assert text_of(processed.outputs) == "ab"
    assert processed.resync == {"a": 2}


def test_a_request_that_was_aborted_gives_nothing_more():
    processor = started()
    stream(processor, byte_ids("ab"))
    processor.abort(["a", "never heard of"])
    processed = processor.process(core_outputs(core_output(2, [3], finish_reason=FinishReason.ABORT)))
    assert (processed.outputs, processed.aborts, processed.resync) == ([], [], {})
    assert processor.offsets() == {}


def test_what_is_remembered_of_ended_requests_is_bounded(monkeypatch):
    monkeypatch.setattr(processor_module, "MAX_REMEMBERED", 3)
    processor = OutputProcessor(VOCABULARY)
    processor.abort([str(number) for number in range(10)])
    for number in range(10):
        processor.process(core_outputs(core_output(0, byte_ids("x"), str(number))))
    assert text_of(processor.register(core_request("9")).outputs) == ""
    assert text_of(processor.register(core_request("6")).outputs) == "x"


@given(st.integers(0, 40), st.sampled_from([[], ["412"], ["boats? 船 🎉! "]]))
def test_another_processor_goes_on_where_one_has_ended(cut, stop):
    """The tokens so far are enough: text that was withheld is still to come, text that was sent is not repeated."""
    ids = byte_ids("How many boats? 船 🎉! The answer is 412.")
    whole, _ = stream(started(core_request(stop=stop)), ids, finish_reason=FinishReason.LENGTH)
    before, _ = stream(started(core_request(stop=stop)), ids[:cut])
    if any(delta.finish_reason for delta in before):
        return
    second = started(core_request(stop=stop, continuation=ids[:cut]))
    assert second.offsets() == {"a": cut}
    after, _ = stream(second, ids[cut:], start=cut, finish_reason=FinishReason.LENGTH)
    assert text_of(before) + text_of(after) == text_of(whole)
    assert tokens_of(before) + tokens_of(after) == tokens_of(whole)
    assert after[0].offset == cut


def test_min_tokens_counts_the_continuation():
    request = core_request(stop=["END"], min_tokens=3, continuation=byte_ids("EN"))
    deltas, _ = stream(started(request), byte_ids("DEND"), start=2)
    assert text_of(deltas) == "END"


def test_a_continuation_that_has_the_stop_string_ends_at_once():
    processor = OutputProcessor(VOCABULARY)
    processed = processor.register(core_request(stop=["END"], continuation=byte_ids("yes END")))
    (delta,) = processed.outputs
    assert (delta.offset, delta.token_ids, delta.text) == (7, [], "")
    assert (delta.finish_reason, delta.stop_reason) == (FinishReason.STOP, "END")
    assert processed.aborts == ["a"]


def test_prompt_logprobs_are_passed_once():
    processor = started(core_request(prompt=[3, 4], prompt_logprobs=1, max_tokens=0))
    of_prompt = [None, TokenLogprobs([4, 5], [-2.0, -1.0], 2)]
    (first,) = processor.process(core_outputs(core_output(0, [], prompt_logprobs=of_prompt))).outputs
    assert first.prompt_logprobs[0] is None
    assert first.prompt_logprobs[1].chosen.token_id == 4
    again = core_output(0, [], prompt_logprobs=of_prompt, finish_reason=FinishReason.LENGTH)
    (last,) = processor.process(core_outputs(again)).outputs
    assert last.prompt_logprobs is None
    assert (last.token_ids, last.text, last.finish_reason) == ([], "", FinishReason.LENGTH)


def test_an_output_without_anything_new_is_not_passed_on_but_its_cached_tokens_are_remembered():
    processor = started()
    assert processor.process(core_outputs(core_output(0, [], num_cached_tokens=16))).outputs == []
    deltas, _ = stream(processor, byte_ids("ab"))
    assert [delta.num_cached_tokens for delta in deltas] == [16, 16]


@pytest.mark.parametrize(
    "broken",
    [
        core_output(0, [BAD]),
        core_output(0, [3], logprobs=[]),
        core_output(0, [3], logprobs=[TokenLogprobs([3], [], 1)]),
        core_output(0, [3], prompt_logprobs=[TokenLogprobs([BAD], [-1.0], 1)]),
    ],
)
def test_an_exception_ends_the_one_request_and_no_other(broken):
    processor = started(core_request("b"), core_request("a", prompt_logprobs=0), core_request("c"))
    b, c = core_output(0, byte_ids("b"), "b"), core_output(0, byte_ids("c"), "c")
    processed = processor.process(core_outputs(b, broken, c))
    assert [delta.request_id for delta in processed.outputs] == ["b", "a", "c"]
    failed = processed.outputs[1]
    assert failed.finish_reason is FinishReason.ERROR
    assert failed.error == "the output of this request could not be processed"
    assert processed.aborts == ["a"]
    assert processor.offsets() == {"b": 1, "c": 1}
    assert processor.process(core_outputs(core_output(1, [3]))).outputs == []


def test_an_exception_at_registration_ends_the_request():
    processor = OutputProcessor(VOCABULARY)
    processed = processor.register(core_request(prompt=[BAD], continuation=[3, 4]))
    (delta,) = processed.outputs
    assert (delta.offset, delta.finish_reason) == (2, FinishReason.ERROR)
    assert processed.aborts == ["a"]
    assert processor.offsets() == {}


# ------------------------------------------------------------------ tickets


def test_what_is_handed_over_has_no_end_here_and_is_forgotten():
    processor = started(core_request())
    (token_id,) = byte_ids("x")
    output = core_output(0, [token_id], kv_ticket=b"ticket")
    processed = processor.process(core_outputs(output))
    (delta,) = processed.outputs
    assert (delta.text, delta.finish_reason, delta.kv_ticket) == ("x", None, b"ticket")
    assert processed.aborts == []
    assert processor.offsets() == {}
    assert processor.process(core_outputs(output)).outputs == []  # the same again


def test_a_ticket_that_comes_again_once_the_same_engine_goes_on_is_known():
    """It has become the only one, so that it was given back what it had handed over."""
    processor = started(core_request())
    output = core_output(0, byte_ids("x"), kv_ticket=b"ticket")
    processor.process(core_outputs(output))
    processor.register(core_request(continuation=byte_ids("x")))
    assert processor.process(core_outputs(output)).outputs == []
    deltas, _ = stream(processor, byte_ids("yz"), start=1, finish_reason=FinishReason.LENGTH)
    assert text_of(deltas) == "yz"


def test_what_ends_by_a_stop_string_is_not_handed_over():
    processor = started(core_request(stop=["x"]))
    processed = processor.process(core_outputs(core_output(0, byte_ids("x"), kv_ticket=b"ticket")))
    (delta,) = processed.outputs
    assert (delta.finish_reason, delta.stop_reason, delta.kv_ticket) == (FinishReason.STOP, "x", None)
    assert processed.aborts == []  # the engine has forgotten it


def test_a_ticket_for_what_is_kept_is_told_whichever_way_the_last_token_ends_it():
    processor = started(core_request(stop=["x"]))
    last = core_output(0, byte_ids("x"), kv_ticket=b"ticket", finish_reason=FinishReason.LENGTH)
    (delta,) = processor.process(core_outputs(last)).outputs
    assert (delta.finish_reason, delta.kv_ticket) == (FinishReason.STOP, b"ticket")
