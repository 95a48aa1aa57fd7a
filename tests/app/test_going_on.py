"""Whatever dies, the answers go on: each text, token and log-probability is what an undisturbed run gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from app.engine import Prompt
from app.journal import MAX_DEATHS
from protocol.errors import EngineDeadError
from protocol.ids import EngineIndex
from protocol.messages import EngineCoreRequest, FinishReason
from protocol.pooling import Pooling, PoolingParams
from protocol.sampling import GrammarKind, GrammarSource, SamplingParams
from tests.helpers.clients import collect, open_client
from tests.helpers.grammars import checker

WORDS = checker().check(GrammarSource(GrammarKind.REGEX, "([a-z]{1,6} ){3,12}"))
EVERYTHING = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.0, "top_p": 0.9},
    "logprobs": {"temperature": 1.0, "logprobs": 2, "prompt_logprobs": 1},
    "penalties": {"temperature": 0.8, "frequency_penalty": 1.5, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    "min_tokens": {"temperature": 0, "min_tokens": 20, "eos_token_ids": [1, 2]},
    "stop": {"temperature": 0, "stop": ["e ", "zzz"]},
    "stop with all": {"temperature": 0, "stop": [" the"], "include_stop_str_in_output": True},
    "grammar": {"temperature": 1.0, "grammar": WORDS},
    "bias": {"temperature": 1.0, "logit_bias": {70: 3.0, 71: -100.0}},
}


def a_prompt(seed: int, max_tokens: int = 40, **fields: Any) -> Prompt:
    return Prompt([5, 6, 7 + seed], SamplingParams(max_tokens=max_tokens, seed=seed, **fields))


def a_prompt_to_pool(kind: Pooling) -> Prompt:
    return Prompt(list(range(5, 55)), SamplingParams(max_tokens=0, seed=0), pooling=PoolingParams(kind))


PROMPTS = [a_prompt(seed, **fields) for seed, fields in enumerate(EVERYTHING.values())]
PROMPTS += [a_prompt_to_pool(kind) for kind in Pooling]


async def tick(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def kill_and_restart(house: Any, nursery: trio.Nursery, victim: str) -> None:
    with trio.CancelScope(shield=True):  # whoever is killed is started again, also when the answers have ended by then
        house.kill(victim)
        await wait_all_tasks_blocked()
        if victim == "output-0":
            nursery.start_soon(house.run_output)
        else:
            nursery.start_soon(house.run_engine, EngineIndex(int(victim.removeprefix("engine-"))))
        while not house.is_running(victim):
            await tick(1)


def deaths_of(*actors: str) -> st.SearchStrategy[list[tuple[int, str]]]:
    return st.lists(st.tuples(st.integers(0, 120), st.sampled_from(actors)), min_size=1, max_size=4)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deaths=deaths_of("engine-0", "output-0"))
async def test_every_kind_of_request_goes_on_after_deaths_at_any_moment(checkpoint, autojump_clock, deaths):
    await check_that_all_goes_on(checkpoint, deaths, num_engines=1)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deaths=deaths_of("engine-0", "engine-1", "output-0"))
async def test_every_kind_of_request_goes_on_when_one_of_several_engines_dies(checkpoint, autojump_clock, deaths):
    await check_that_all_goes_on(checkpoint, deaths, num_engines=2)


async def check_that_all_goes_on(checkpoint: Path, deaths: list[tuple[int, str]], num_engines: int) -> None:
    async with open_client(checkpoint, num_engines=num_engines) as (client, house, nursery):
        while len(client.readings()) < num_engines:
            await tick(1)
        expected = await collect(client, *PROMPTS)

        async def kill() -> None:
            for ticks, victim in deaths:
                await tick(ticks)
                await kill_and_restart(house, nursery, victim)
                while any(entry.deaths for entry in client.live()):
                    await trio.sleep(0.01)  # each request gets on before the next death, so none is taken for the cause

        async with trio.open_nursery() as killing:
            killing.start_soon(kill)
            assert await collect(client, *PROMPTS) == expected
            killing.cancel_scope.cancel()

        await trio.sleep(5)
        assert client.num_requests == 0
        for index in range(num_engines):
            state = await client.engine_state(EngineIndex(index))
            assert (state.request_ids, state.stats.kv_blocks_used) == ([], 0)


async def test_nothing_that_was_told_is_computed_or_told_again(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, nursery), client.generate([a_prompt(1, 1000)]) as generation:
        await generation.receive()
        await kill_and_restart(house, nursery, "engine-0")
        told = len(client.live()[0].token_ids)
        await wait_all_tasks_blocked(0.001)

        again = [m for m in house.engine_inputs if isinstance(m, EngineCoreRequest)][-1]
        assert again.request_id == "r1"
        assert len(again.continuation_token_ids) == told


async def test_a_client_may_leave_while_its_request_waits_for_an_engine(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, nursery):
        async with client.generate([a_prompt(1, 1000)]) as generation:
            await generation.receive()
            house.kill("engine-0")
            await wait_all_tasks_blocked()
        assert client.num_requests == 0

        nursery.start_soon(house.run_engine)
        await trio.sleep(1)
        assert (await client.engine_state(0)).request_ids == []


async def test_a_request_that_kills_every_engine_ends_and_the_others_go_on(checkpoint, autojump_clock):
    """Whichever step the poison is in, the engine dies of it."""
    async with open_client(checkpoint) as (client, house, nursery):
        others = [a_prompt(seed, 60) for seed in range(4)]
        expected = await collect(client, *others)
        poison = Prompt([9, 9, 9], SamplingParams(max_tokens=5, seed=1))
        results: dict[str, Any] = {}

        async def die_of_poison() -> None:
            seen = 0
            while "poison" not in results:
                new = house.engine_inputs[seen:]
                seen = len(house.engine_inputs)
                if any(isinstance(m, EngineCoreRequest) and m.prompt_token_ids == [9, 9, 9] for m in new):
                    await kill_and_restart(house, nursery, "engine-0")
                await trio.lowlevel.checkpoint()

        async def send_poison() -> None:
            with pytest.raises(EngineDeadError, match="number 3 in a row"):
                await collect(client, poison)
            results["poison"] = True

        async def send_others() -> None:
            results["others"] = await collect(client, *others)

        async with trio.open_nursery() as asking:
            asking.start_soon(send_others)
            asking.start_soon(send_poison)
            asking.start_soon(die_of_poison)

        assert results["others"] == expected
        assert all(end is FinishReason.LENGTH for *_, end in results["others"])
        incidents = client.incidents
        assert incidents.deaths == {"engine-0": 3}
        assert incidents.condemned == 1
        assert incidents.quarantined >= 1
        assert incidents.replays >= 2


async def test_a_request_is_innocent_of_engines_that_somebody_killed(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, nursery):
        prompt = Prompt([9] * 200, SamplingParams(max_tokens=5, seed=1))
        expected = await collect(client, prompt)
        house.kills_from_outside = True
        results: list[Any] = []

        async def kill_before_the_first_token() -> None:
            seen = before
            while not results:
                new = house.engine_inputs[seen:]
                seen = len(house.engine_inputs)
                if any(isinstance(message, EngineCoreRequest) for message in new) and len(kills) < MAX_DEATHS + 2:
                    kills.append("engine-0")
                    await kill_and_restart(house, nursery, "engine-0")
                await trio.lowlevel.checkpoint()

        kills: list[str] = []
        before = len(house.engine_inputs)
        async with trio.open_nursery() as asking:
            asking.start_soon(kill_before_the_first_token)
            results += await collect(client, prompt)
        assert results == expected
        assert client.incidents.deaths == {"engine-0": MAX_DEATHS + 2}
        assert client.incidents.quarantined == 0
