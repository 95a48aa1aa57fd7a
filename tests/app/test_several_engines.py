"""The engine client over two engines (the actors' mains, in virtual time): one is enough, and has the other's work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from app.engine import Prompt
from app.engine_client import ActorEngineClient
from app.metrics import Metrics
from protocol.errors import ConflictError, UnavailableError
from protocol.ids import EngineIndex
from protocol.messages import EngineCoreRequest, FinishReason
from protocol.operations import (
    GetState,
    Pause,
    PauseMode,
    Resume,
    RunState,
    Sleep,
    StartProfile,
    StopProfile,
    WakeUp,
)
from protocol.sampling import SamplingParams
from tests.helpers.clients import collect, open_client
from tests.helpers.memory_house import MemoryHouse

ZERO, ONE = EngineIndex(0), EngineIndex(1)
STEP = 0.01
KEEP = PauseMode.KEEP


def a_prompt(seed: int, max_tokens: int = 40) -> Prompt:
    return Prompt([5, seed], SamplingParams(max_tokens=max_tokens, temperature=1, seed=seed, logprobs=1))


PROMPTS = [a_prompt(seed) for seed in range(16)]


def open_two(checkpoint, **fields: object):
    return open_client(checkpoint, num_engines=2, dummy_step_seconds=STEP, **fields)


def engines_of(client: ActorEngineClient) -> Counter[EngineIndex | None]:
    """How many live requests each has."""
    return Counter(None if entry.engine is None else entry.engine[0] for entry in client.live())


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(STEP)


async def test_requests_are_spread_and_answers_are_one_engine_s(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, _, _):
        expected = await collect(client, *PROMPTS)
    async with open_two(checkpoint) as (client, _, _):
        await until(lambda: len(client.readings()) == 2)
        async with client.generate(PROMPTS):
            assert engines_of(client) == {ZERO: 8, ONE: 8}
        assert await collect(client, *PROMPTS) == expected


@pytest.mark.parametrize("victim", [ZERO, ONE])
async def test_the_others_take_over_before_the_dead_one_is_back(checkpoint, autojump_clock, victim):
    async with open_two(checkpoint) as (client, house, _):
        await until(lambda: len(client.readings()) == 2)
        expected = await collect(client, *PROMPTS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_later, house, client, victim)
            assert await collect(client, *PROMPTS) == expected
        assert client.incidents.replays == 8
        assert client.readiness.ready
        assert client.readiness.late == f"engine-{victim}: serve"
        assert (await collect(client, a_prompt(3)))[0] == expected[3]


async def kill_later(house: MemoryHouse, client: ActorEngineClient, victim: EngineIndex) -> None:
    await trio.sleep(10 * STEP)
    assert all(entry.token_ids for entry in client.live())
    house.kill(f"engine-{victim}")
    await wait_all_tasks_blocked()
    assert engines_of(client) == {ONE - victim: 16}


async def test_both_may_die_one_after_the_other(checkpoint, autojump_clock):
    async with open_two(checkpoint) as (client, house, nursery):
        await until(lambda: len(client.readings()) == 2)
        expected = await collect(client, *PROMPTS)

        async def kill_both() -> None:
            for victim in (ZERO, ONE, ZERO, ONE):
                await trio.sleep(3 * STEP)
                house.kill(f"engine-{victim}")
                await wait_all_tasks_blocked()
                nursery.start_soon(house.run_engine, victim)

        house.kills_from_outside = True
        async with trio.open_nursery() as killing:
            killing.start_soon(kill_both)
            assert await collect(client, *PROMPTS) == expected


async def test_after_the_output_handler_s_death_each_goes_on_in_its_engine(checkpoint, autojump_clock):
    async with open_two(checkpoint) as (client, house, nursery):
        await until(lambda: len(client.readings()) == 2)
        async with client.generate(PROMPTS) as generation:
            await trio.sleep(10 * STEP)
            before = {entry.request_id: entry.engine for entry in client.live()}
            house.kill("output-0")
            await wait_all_tasks_blocked()
            assert engines_of(client) == {None: 16}
            nursery.start_soon(house.run_output)
            await until(lambda: engines_of(client)[None] == 0)
            assert {entry.request_id: entry.engine for entry in client.live()} == before
            while not generation.finished:
                await generation.receive()


async def test_who_waited_for_an_engine_that_dies_before_it_is_heard_goes_on_in_another_one(checkpoint, autojump_clock):
    async with open_two(checkpoint) as (client, house, nursery):
        await until(lambda: len(client.readings()) == 2)
        expected = await collect(client, *PROMPTS)

        async def kill() -> None:
            await trio.sleep(10 * STEP)
            house.kill("output-0")
            await wait_all_tasks_blocked()
            house.kill("engine-1")
            await wait_all_tasks_blocked()
            nursery.start_soon(house.run_output)
            await until(lambda: engines_of(client) == {ZERO: 16})

        async with trio.open_nursery() as killing:
            killing.start_soon(kill)
            assert await collect(client, *PROMPTS) == expected


async def test_an_engine_that_is_not_heard_of_gets_nothing_new(checkpoint, autojump_clock):
    async with open_two(checkpoint) as (client, house, _):
        await until(lambda: len(client.readings()) == 2)
        house.silent.add("engine-0")
        assert client.readiness.ready
        assert client.readiness.late == "engine-0 has not been heard of for 7 s"
        async with client.generate(PROMPTS):
            assert engines_of(client) == {ONE: 16}
        house.silent.add("engine-1")
        assert not client.readiness.ready
        with pytest.raises(UnavailableError, match="engine-1 has not been heard of"):
            await collect(client, a_prompt(1))
        async with client.generate([a_prompt(1)], goes_on=True) as generation:  # a part of a request that runs
            await generation.receive()


async def test_without_any_engine_requests_are_refused_and_those_that_run_wait_for_the_first(
    checkpoint, autojump_clock
):
    async with open_two(checkpoint) as (client, house, nursery):
        await until(lambda: len(client.readings()) == 2)
        expected = await collect(client, *PROMPTS)

        async def kill() -> None:
            await trio.sleep(10 * STEP)
            house.kill("engine-0")
            house.kill("engine-1")
            await wait_all_tasks_blocked()
            assert engines_of(client) == {None: 16}
            with pytest.raises(UnavailableError, match="engine-0: serve; engine-1: serve"):
                await collect(client, a_prompt(1))
            nursery.start_soon(house.run_engine, ONE)

        async with trio.open_nursery() as killing:
            killing.start_soon(kill)
            assert await collect(client, *PROMPTS) == expected


async def test_a_conversation_finds_what_its_engine_has_computed(checkpoint, autojump_clock):
    async with open_two(checkpoint, block_size=4) as (client, _, _):
        await until(lambda: len(client.readings()) == 2)
        conversations = [[100 + number] * 20 for number in range(6)]
        for _ in range(4):
            for tokens in conversations:
                prompt = Prompt(list(tokens), SamplingParams(max_tokens=8, seed=1))
                [(_, ids, _, _)] = await collect(client, prompt)
                tokens += [*ids, 7, 8, 9]
        predicted = [reading.num_predicted for reading in client.readings()]
        found = [reading.stats.prefix_cache_hits for reading in client.readings()]
        assert all(predicted)
        # An engine has the answer's blocks as well, which it was not sent.
        assert all(guess <= hits <= guess + 3 * 3 * 12 for guess, hits in zip(predicted, found, strict=True))


# ---------------------------------------------------------------------- operations


@pytest.mark.parametrize(("hold", "release"), [(Pause(KEEP), Resume()), (Sleep(1, KEEP), WakeUp())], ids=str)
async def test_an_engine_that_was_down_comes_back_as_the_others_are(checkpoint, autojump_clock, hold, release):
    async with open_two(checkpoint) as (client, house, nursery):
        await until(lambda: len(client.readings()) == 2)
        expected = await collect(client, *PROMPTS)
        house.kill("engine-1")
        await wait_all_tasks_blocked()
        [held] = await client.operate(hold)
        nursery.start_soon(house.run_engine, ONE)
        await until(lambda: not client.readiness.late)
        assert [state.run_state for state in await client.operate(GetState())] == [held, held]

        async with client.generate(PROMPTS) as generation:
            await trio.sleep(1)
            assert not any(entry.token_ids for entry in client.live())
            house.kill("engine-1")
            await wait_all_tasks_blocked()
            await client.operate(release)
            nursery.start_soon(house.run_engine, ONE)
            while not generation.finished:
                await generation.receive()
        assert [state.run_state for state in await client.operate(GetState())] == [RunState()] * 2
        assert await collect(client, *PROMPTS) == expected


async def test_who_comes_back_before_all_have_answered_is_told_too(checkpoint, autojump_clock):
    async with open_two(checkpoint) as (client, house, nursery):
        await until(lambda: len(client.readings()) == 2)
        async with client.generate([a_prompt(1, 400)]) as generation:
            await generation.receive()
            assert engines_of(client) == {ZERO: 1}
            house.kill("engine-1")
            await wait_all_tasks_blocked()
            states: list[RunState] = []
            async with trio.open_nursery() as asking:

                async def pause() -> None:
                    states.extend(await client.operate(Pause(PauseMode.WAIT)))

                asking.start_soon(pause)
                await trio.sleep(STEP)
                nursery.start_soon(house.run_engine, ONE)
                while not generation.finished:
                    await generation.receive()
        assert states == [RunState(True), RunState(True)]
        await client.operate(Resume())


async def test_what_one_engine_did_is_done_though_another_died_of_it(checkpoint, autojump_clock):
    async with open_two(checkpoint) as (client, house, nursery):
        await until(lambda: len(client.readings()) == 2)
        async with client.generate([a_prompt(1, 100)]):
            async with trio.open_nursery() as asking:
                states: list[RunState] = []

                async def sleep() -> None:
                    states.extend(await client.operate(Sleep(0, PauseMode.WAIT)))

                asking.start_soon(sleep)
                await trio.sleep(STEP)
                house.kill("engine-0")  # which waits for its request, that goes on in the other one
            assert states == [RunState(False, 0)]
            nursery.start_soon(house.run_engine, ZERO)
            await until(lambda: not client.readiness.late)
            assert client.run_state == RunState(False, 0)
            await client.operate(WakeUp())


async def test_a_profile_is_had_from_those_that_have_it(checkpoint, autojump_clock, tmp_path):
    async with open_two(checkpoint, profiler_directory=str(tmp_path)) as (client, house, nursery):
        await until(lambda: len(client.readings()) == 2)
        assert len(await client.operate(StartProfile())) == 2
        house.kill("engine-0")
        await wait_all_tasks_blocked()
        nursery.start_soon(house.run_engine, ZERO)
        await until(lambda: not client.readiness.late)
        assert len(await client.operate(StopProfile())) == 1
        with pytest.raises(ConflictError):
            await client.operate(StopProfile())


# ---------------------------------------------------------------------- the rest


async def test_a_request_that_kills_engines_ends_and_the_others_never_wait_for_it_in_vain(checkpoint, autojump_clock):
    async with open_two(checkpoint) as (client, house, nursery):
        await until(lambda: len(client.readings()) == 2)
        expected = await collect(client, *PROMPTS)
        poison = a_prompt(99)

        async def die_of_poison(index: EngineIndex) -> None:
            """Each engine that is sent the poison dies, and is started again."""
            seen = 0
            while True:
                await trio.sleep(STEP / 2)
                state = next(state for state in house.states() if state.engine_index == index)
                new, seen = house.engine_inputs[seen:], len(house.engine_inputs)
                if state.ready and any(is_poison(message, house, index) for message in new):
                    house.kill(f"engine-{index}")
                    await trio.sleep(STEP)
                    nursery.start_soon(house.run_engine, index)

        def is_poison(message: object, house: MemoryHouse, index: EngineIndex) -> bool:
            return (
                isinstance(message, EngineCoreRequest)
                and message.prompt_token_ids == poison.prompt_token_ids
                and message.epoch == house._engines[index].epoch
            )

        async def send_poison() -> None:
            with pytest.raises(Exception, match="number 3 in a row to die under this request"):
                await collect(client, poison)

        async with trio.open_nursery() as around:
            for index in (ZERO, ONE):
                around.start_soon(die_of_poison, index)
            async with trio.open_nursery() as asking:
                asking.start_soon(send_poison)
                assert await collect(client, *PROMPTS) == expected
            around.cancel_scope.cancel()
        assert client.incidents.condemned == 1


async def test_metrics_tell_of_each_engine_and_of_requests_where_they_ended(checkpoint, autojump_clock):
    async with open_two(checkpoint) as (client, _, _):
        await until(lambda: len(client.readings()) == 2)
        metrics = Metrics(client, "m")
        await collect(client, *PROMPTS)
        page = metrics.render()[0].decode()
        assert 'vllm:prefix_cache_queries_total{engine="0",model_name="m"} 16.0' in page
        assert 'vllm:prefix_cache_queries_total{engine="1",model_name="m"} 16.0' in page
        assert 'trillm:ready{model_name="m"} 1.0' in page
        assert page.count("# TYPE vllm:num_requests_running gauge") == 1
        ends = {end for *_, end in await collect(client, *PROMPTS)}
        assert ends == {FinishReason.LENGTH}
