"""What is not from the app is refused alone, and named; what the app sends is never refused."""

from __future__ import annotations

import math

import msgspec
import pytest

from actors.engine.admission import refusal_of
from protocol.messages import EngineCoreRequest
from protocol.sampling import SamplingParams

WHOLE = SamplingParams(
    max_tokens=3,
    seed=-(2**63),
    temperature=2.0,
    top_k=99,
    min_p=1.0,
    presence_penalty=-2.0,
    frequency_penalty=2.0,
    repetition_penalty=100.0,
    logit_bias={0: -100.0, 99: 100.0},
    allowed_token_ids=[0, 99],
    bad_words_token_ids=[[0, 99]],
    eos_token_ids=[99],
    stop_token_ids=[0],
    logprobs=20,
    prompt_logprobs=0,
)


def a_request(**fields: object) -> EngineCoreRequest:
    params = {name: value for name, value in fields.items() if name in SamplingParams.__struct_fields__}
    own = {name: value for name, value in fields.items() if name not in params}
    base = EngineCoreRequest(1, 0, "r1", [0, 99], msgspec.structs.replace(WHOLE, **params), 1.5, 0, [99])
    return msgspec.structs.replace(base, **own)


def test_the_edges_of_every_range_are_let_in() -> None:
    assert refusal_of(a_request(), 100) is None
    assert refusal_of(a_request(temperature=0.0, top_p=1e-9, seed=2**63 - 1, deadline=math.inf), 100) is None
    assert refusal_of(a_request(logit_bias={}, allowed_token_ids=None, bad_words_token_ids=[]), 100) is None


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("prompt_token_ids", [5, 100], "the prompt has token ids outside the vocabulary (0 to 99)"),
        ("prompt_token_ids", [-1], "the prompt has"),
        ("continuation_token_ids", [2**40], "the continuation has"),
        ("logit_bias", {100: 1.0}, "logit_bias has token ids"),
        ("allowed_token_ids", [100], "allowed_token_ids has"),
        ("bad_words_token_ids", [[1], [2, 100]], "bad_words has"),
        ("eos_token_ids", [-5], "eos_token_ids has"),
        ("stop_token_ids", [100], "stop_token_ids has"),
        ("arrival_time", math.nan, "arrival_time is no time"),
        ("deadline", math.nan, "deadline is no time"),
        ("max_tokens", -1, "max_tokens is out of range"),
        ("min_tokens", -1, "min_tokens is"),
        ("seed", 2**63, "seed is"),
        ("temperature", math.nan, "temperature is"),
        ("temperature", math.inf, "temperature is"),
        ("top_p", 0.0, "top_p is"),
        ("top_k", -1, "top_k is"),
        ("min_p", 1.1, "min_p is"),
        ("presence_penalty", math.nan, "presence_penalty is"),
        ("frequency_penalty", 2.1, "frequency_penalty is"),
        ("repetition_penalty", 0.0, "repetition_penalty is"),
        ("logit_bias", {1: math.nan}, "logit_bias is"),
        ("allowed_token_ids", [], "allowed_token_ids is"),
        ("bad_words_token_ids", [[]], "bad_words is"),
        ("logprobs", -1, "logprobs is"),
        ("prompt_logprobs", 101, "prompt_logprobs is"),
    ],
)
def test_what_is_beyond_is_refused_with_its_name(field: str, value: object, told: str) -> None:
    refusal = refusal_of(a_request(**{field: value}), 100)
    assert refusal is not None
    assert refusal.startswith(told)
