"""A request's fields become exactly these parameters."""

from __future__ import annotations

import random
from typing import Any

import pytest

from app.limits import Limits
from app.model_card import GenerationConfig
from app.seeds import choice_seed
from protocol.sampling import SamplingParams
from tests.helpers.app_under_test import make_app

PATHS = ["chat", "completions"]


async def params(kind: str = "completions", config: GenerationConfig | None = None, **fields: Any) -> SamplingParams:
    return (await all_params(kind, config, **fields))[0]


async def all_params(kind: str = "completions", config: GenerationConfig | None = None, **fields: Any) -> list[Any]:
    under_test = make_app(generation_config=config)
    ask = under_test.chat if kind == "chat" else under_test.complete
    reply = await ask(**{"stop": ["Over"], **fields})  # the fake answers at once
    assert reply.status_code == 200, reply.text
    return [prompt.sampling_params for prompt in under_test.engine.prompts]


@pytest.mark.parametrize("kind", PATHS)
async def test_the_defaults_are_neutral(kind: str) -> None:
    found = await params(kind, stop=None, max_tokens=5)
    assert found == SamplingParams(max_tokens=5, seed=42, eos_token_ids=found.eos_token_ids)
    assert len(found.eos_token_ids) == 1


@pytest.mark.parametrize("kind", PATHS)
async def test_null_means_the_default(kind: str) -> None:
    names = ["temperature", "top_p", "top_k", "min_p", "n", "best_of", "seed", "logit_bias", "stop", "stop_token_ids"]
    names += ["min_tokens", "ignore_eos", "presence_penalty", "frequency_penalty", "repetition_penalty", "bad_words"]
    names += ["allowed_token_ids", "stream", "stream_options", "logprobs", "user", "response_format", "priority"]
    plain = await params(kind, max_tokens=5)
    assert await params(kind, max_tokens=5, **dict.fromkeys(names, None)) == (
        plain if plain.stop == [] else await params(kind, max_tokens=5, stop=None)
    )


@pytest.mark.parametrize("temperature", [0, 1e-12, 1e-5, 0.0])
async def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    assert (await params(temperature=temperature)).temperature == 0.0


async def test_the_edges_of_the_ranges_are_taken() -> None:
    for seed in (2**63 - 1, -(2**63), -1, 0):
        assert (await params(seed=seed)).seed == seed
    assert (await params(temperature=2)).temperature == 2.0
    assert (await params(temperature=1e-4)).temperature == 1e-4
    assert (await params(top_p=1e-4)).top_p == 1e-4
    assert (await params(logit_bias={"511": -100, "0": 100})).logit_bias == {511: -100.0, 0: 100.0}
    assert (await params(presence_penalty=-2, frequency_penalty=2)).frequency_penalty == 2.0
    assert (await params(stop_token_ids=[5, 5, 511])).stop_token_ids == [5, 511]
    assert (await params(min_tokens=5, max_tokens=5)).min_tokens == 5
    assert (await params(allowed_token_ids=[7, 5, 7])).allowed_token_ids == [5, 7]


@pytest.mark.parametrize("top_k", [-1, 0, 512, 2**70])
async def test_a_top_k_that_cuts_nothing_is_off(top_k: int) -> None:
    assert (await params(top_k=top_k)).top_k == 0


async def test_one_stop_string_or_several() -> None:
    assert (await params(stop="Over")).stop == ["Over"]
    assert (await params(stop=["Over", "the", "Over"])).stop == ["Over", "the"]
    assert (await params(stop=[], max_tokens=1)).stop == []


async def test_ignore_eos_leaves_no_eos() -> None:
    assert (await params(ignore_eos=True)).eos_token_ids == []


async def test_bad_words_are_banned_at_the_start_and_after_a_blank() -> None:
    under_test = make_app()
    tokenizer = under_test.engine.tokenizer
    await under_test.complete(bad_words=["boats", " boats"], max_tokens=1)
    banned = under_test.engine.prompts[0].sampling_params.bad_words_token_ids
    assert banned == [tokenizer.encode("boats"), tokenizer.encode(" boats")]


async def test_max_tokens_defaults() -> None:
    assert (await params("completions")).max_tokens == 16
    assert (await params("completions", prompt=[40] * 250)).max_tokens == 6
    under_test = make_app()
    used = (await under_test.chat(stop="Over")).json["usage"]["prompt_tokens"]
    assert under_test.engine.prompts[0].sampling_params.max_tokens == 256 - used
    assert (await params("chat", max_tokens=9, max_completion_tokens=5)).max_tokens == 5
    assert (await params("completions", max_tokens=0)).max_tokens == 0


async def test_logprobs_are_counts_and_zero_is_not_off() -> None:
    assert (await params("completions")).logprobs is None
    assert (await params("completions", logprobs=0)).logprobs == 0
    assert (await params("completions", logprobs=5)).logprobs == 5
    assert (await params("chat", logprobs=True)).logprobs == 0
    assert (await params("chat", logprobs=True, top_logprobs=0)).logprobs == 0
    assert (await params("chat", logprobs=True, top_logprobs=20)).logprobs == Limits().max_logprobs
    assert (await params("chat", logprobs=False, top_logprobs=None)).logprobs is None
    echoed = await params("completions", logprobs=2, echo=True)
    assert (echoed.logprobs, echoed.prompt_logprobs) == (2, 2)


async def test_the_checkpoints_own_defaults_are_used_and_overridden() -> None:
    config = GenerationConfig(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1)
    found = await params(config=config)
    assert (found.temperature, found.top_p, found.top_k, found.min_p, found.repetition_penalty) == (
        0.6,
        0.9,
        20,
        0.1,
        1.1,
    )
    assert (await params(config=config, temperature=1, top_k=0)).temperature == 1.0
    assert (await params(config=config, top_k=0)).top_k == 0
    assert (await params(config=GenerationConfig(do_sample=False))).temperature == 0.0


async def test_each_choice_has_its_own_seed_and_the_first_the_requests() -> None:
    seeds = [each.seed for each in await all_params(n=4, seed=7)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 4
    assert seeds == [each.seed for each in await all_params(n=4, seed=7)]
    batch = [each.seed for each in await all_params(prompt=["a", "b"], n=2, seed=7)]
    assert batch == seeds[:2] * 2


def test_seeds_of_choices_are_int64_and_far_apart() -> None:
    source = random.Random(5)
    seeds = [choice_seed(source.randrange(-(2**63), 2**63), choice) for choice in range(128) for _ in range(20)]
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == len(seeds)
    assert not {choice_seed(7, 1), choice_seed(7, 2)} & set(range(-1000, 1000))
