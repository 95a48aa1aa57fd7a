"""Reading answers: streamed or whole they compare, and what must not come in one is found."""

from __future__ import annotations

import json

import pytest

from scripts.chaos_run.answer import Told, first_difference
from scripts.chaos_run.exchange import BrokenAnswerError

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "prompt_tokens_details": None}
LOGPROBS = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}], "text_offset": [0]}


def event(text: str = "", end: str | None = None, **fields: object) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": end, "logprobs": None, **fields}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


CLOSING = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n" + b"data: [DONE]\n\n"


def test_a_stream_tells_the_same_as_a_whole_answer_however_its_bytes_come():
    streamed, whole = Told(), Told()
    data = event("a", logprobs=LOGPROBS) + event("b", "length", logprobs=LOGPROBS) + CLOSING
    for byte in data:
        streamed.feed(bytes([byte]))
    both = {name: column * 2 for name, column in LOGPROBS.items()}
    whole.take_whole(
        {"usage": USAGE, "choices": [{"index": 0, "text": "ab", "finish_reason": "length", "logprobs": both}]}
    )

    assert streamed.complaint() is None
    assert whole.complaint() is None
    assert streamed.comparable() == whole.comparable()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (event("a", "stop"), "without [DONE]"),
        (event("a") + CLOSING, "no end"),
        (event("a", "stop") + b"data: [DONE]\n\n", "no usage"),
        (b'data: {"error": {"message": "gone"}}\n\ndata: [DONE]\n\n', "error: gone"),
    ],
)
def test_an_answer_that_does_not_end_as_it_should_is_complained_of(data, complaint):
    told = Told()
    told.feed(data)

    assert complaint in told.complaint()


@pytest.mark.parametrize(
    "data",
    [
        event("a", "stop") + event("b"),
        event("a", "stop") + CLOSING + event("b"),
        event("a", "stop") + CLOSING + b"data: [DONE]\n\n",
        event("a", "stop") + CLOSING.partition(b"data: [DONE]")[0] + CLOSING,
        b'data: {"error": {"message": "gone"}}\n\n' + event("b"),
        b"noise\n\n",
    ],
)
def test_what_must_not_come_is_refused(data):
    with pytest.raises(BrokenAnswerError):
        Told().feed(data)


def test_the_first_difference_is_told_with_its_place():
    ours, theirs = Told(), Told()
    ours.feed(event("the same, then this", "stop") + CLOSING)
    theirs.feed(event("the same, then that", "stop") + CLOSING)

    assert first_difference(ours.comparable(), ours.comparable()) is None
    assert "at 17 of 19" in first_difference(ours.comparable(), theirs.comparable())
