"""Operations over the actors' mains: what is held goes on as if nothing had been, also when somebody dies meanwhile."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from app.engine import Prompt
from app.engine_calls import combined
from app.engine_client import ActorEngineClient
from gpu.fake_runner import FakeRunner
from protocol.errors import ConflictError, DeadlineError, UnavailableError
from protocol.messages import EngineCoreRequest, FinishReason, UtilityReply, UtilityRequest
from protocol.operations import (
    AbortAll,
    AllAborted,
    GetState,
    Pause,
    PauseMode,
    ResetPrefixCache,
    Resume,
    RunState,
    Sleep,
    SleepTag,
    StartProfile,
    StopProfile,
    WakeUp,
)
from protocol.sampling import SamplingParams
from tests.helpers.clients import collect, open_client

ABORT, WAIT, KEEP = PauseMode.ABORT, PauseMode.WAIT, PauseMode.KEEP
STEP = 0.01
LONG = [Prompt([5, 6, 7, seed], SamplingParams(max_tokens=60, seed=seed)) for seed in range(3)]
SHORT = [Prompt([9, 8], SamplingParams(max_tokens=4, seed=1))]
HOLDS = [
    (Sleep(0, KEEP), WakeUp()),
    (Sleep(1, KEEP), WakeUp()),
    (Sleep(2, KEEP), WakeUp()),
    (Pause(KEEP), Resume()),
    (Pause(KEEP, clear_cache=False), Resume()),
]

Work = Callable[[], Awaitable[None]]


@asynccontextmanager
async def meanwhile(client: ActorEngineClient, *prompts: Prompt) -> AsyncIterator[list]:
    """These are under way inside; their answers are in the list afterwards."""
    answers: list = []

    async def ask() -> None:
        answers.extend(await collect(client, *prompts))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(10 * STEP)
        yield answers


def open_slow(checkpoint: Path, **fields: object):
    return open_client(checkpoint, dummy_step_seconds=STEP, **fields)


async def one(client: ActorEngineClient, operation: object) -> object:
    [result] = await client.operate(operation)
    return result


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("hold", "release"), HOLDS, ids=str)
async def test_what_is_kept_stops_and_goes_on_with_the_same_tokens(checkpoint, autojump_clock, hold, release, ahead):
    async with open_slow(checkpoint, async_scheduling=ahead) as (client, _, _):
        expected = await collect(client, *LONG)
        async with meanwhile(client, *LONG) as answers:
            state = await one(client, hold)
            await trio.sleep(3 * STEP)  # what was in flight
            told = [len(entry.token_ids) for entry in client.live()]
            assert all(0 < count < 60 for count in told)
            await trio.sleep(100)
            assert [len(entry.token_ids) for entry in client.live()] == told
            assert client.run_state == state
            assert state.is_held
            assert await one(client, release) == RunState()
        assert answers == expected


@pytest.mark.parametrize(("hold", "release"), HOLDS, ids=str)
async def test_who_comes_while_it_is_held_waits(checkpoint, autojump_clock, hold, release):
    async with open_slow(checkpoint) as (client, _, _):
        expected = await collect(client, *SHORT)
        await one(client, hold)
        async with meanwhile(client, *SHORT) as answers:
            await trio.sleep(100)
            assert not client.live()[0].token_ids
            await one(client, release)
        assert answers == expected


@pytest.mark.parametrize("hold", [Sleep(1, ABORT), Pause(ABORT), AbortAll()], ids=str)
async def test_what_is_ended_says_that_it_was(checkpoint, autojump_clock, hold):
    async with open_slow(checkpoint) as (client, _, _), client.generate(LONG) as generation:
        await generation.receive()
        await one(client, hold)
        outputs = []
        while not generation.finished:
            outputs += await generation.receive()
        ends = [output for _, output in outputs if output.finish_reason is not None]
        assert [end.finish_reason for end in ends] == [FinishReason.ABORT] * 3
        assert all(end.error for end in ends)
        assert client.num_requests == 0


async def test_ending_all_says_how_many_there_were(checkpoint, autojump_clock):
    async with open_slow(checkpoint, max_num_seqs=2) as (client, _, _), client.generate(LONG) as generation:
        await generation.receive()
        await one(client, Pause(KEEP))
        assert await one(client, AbortAll()) == AllAborted(3, RunState(True))
        assert await one(client, AbortAll()) == AllAborted(0, RunState(True))
        assert client.run_state == RunState(True)


@pytest.mark.parametrize(("hold", "release"), [(Sleep(2, WAIT), WakeUp()), (Pause(WAIT), Resume())], ids=str)
async def test_what_has_begun_is_finished_first_and_nothing_begins(checkpoint, autojump_clock, hold, release):
    async with open_slow(checkpoint, max_num_seqs=2) as (client, _, _):
        expected = await collect(client, *LONG)
        async with meanwhile(client, *LONG) as answers:  # the third has not begun
            state = await one(client, hold)
            assert state.is_held
            assert [len(entry.token_ids) for entry in client.live()] == [0]
            await trio.sleep(100)
            assert client.num_requests == 1
            await one(client, release)
        assert answers == expected


@pytest.mark.parametrize(("hold", "release"), [(Sleep(1, WAIT), WakeUp()), (Pause(WAIT), Resume())], ids=str)
async def test_who_waits_for_the_hold_hears_that_it_was_called_off(checkpoint, autojump_clock, hold, release):
    async with open_slow(checkpoint) as (client, _, _), meanwhile(client, *LONG):

        async def wait() -> None:
            with pytest.raises(ConflictError):
                await one(client, hold)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            await one(client, release)


async def test_a_wait_ends_when_its_last_request_is_aborted(checkpoint, autojump_clock):
    async with open_slow(checkpoint) as (client, _, _):
        async with client.generate([Prompt([1], SamplingParams(max_tokens=1000, seed=1))]) as generation:
            await generation.receive()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one, client, Sleep(1, WAIT))
                await trio.sleep(STEP)
                generation_left = trio.current_time()
                client.end_all(UnavailableError("enough"))
        assert trio.current_time() - generation_left < 1
        assert client.run_state.is_sleeping


@pytest.mark.parametrize("later", [Sleep(1, KEEP), Sleep(1, WAIT), Sleep(2, ABORT)], ids=str)
async def test_a_wake_does_not_undo_the_sleep_that_was_asked_for_after_it(checkpoint, autojump_clock, later):
    async with open_slow(checkpoint) as (client, _, _):
        await one(client, Sleep(2, KEEP))
        states = {}

        async def ask(operation: object) -> None:
            states[type(operation)] = await one(client, operation)

        async with trio.open_nursery() as nursery:
            for operation in (WakeUp(), later):
                nursery.start_soon(ask, operation)
                await trio.lowlevel.checkpoint()
        assert states[WakeUp] == RunState()
        assert states[Sleep].sleep_level == later.level
        assert (await client.engine_state(0)).run_state == states[Sleep]
        async with meanwhile(client, *SHORT) as answers:
            await trio.sleep(100)
            assert client.num_requests == 1
            await one(client, WakeUp())
        assert answers


async def test_only_what_is_asked_for_is_woken_and_nothing_runs_before_all_is(checkpoint, autojump_clock):
    async with open_slow(checkpoint) as (client, _, _):
        await one(client, Sleep(2, KEEP))
        assert (await one(client, WakeUp([SleepTag.SCHEDULING]))).asleep == ["kv_cache", "weights"]
        state = await one(client, WakeUp([SleepTag.WEIGHTS]))
        assert (state.asleep, state.sleep_level) == (["kv_cache"], 2)
        async with meanwhile(client, *SHORT) as answers:
            assert client.num_requests == 1
            assert await one(client, WakeUp([SleepTag.KV_CACHE])) == RunState()
        assert answers


class FullDevice(FakeRunner):
    """Has no room for the KV cache, the first time."""

    num_tries = 0

    def wake(self, tags: Collection[SleepTag]) -> list[SleepTag]:
        self.num_tries += 1
        if self.num_tries > 1:
            return super().wake(tags)
        super().wake({SleepTag.WEIGHTS})
        raise ConflictError("there is no memory for the KV cache")


async def test_what_there_is_no_memory_for_sleeps_on_until_there_is(checkpoint, autojump_clock):
    async with open_slow(checkpoint) as (client, house, nursery):
        house.open_runner = FullDevice
        house.kill("engine-0")
        await wait_all_tasks_blocked()
        nursery.start_soon(house.run_engine)
        await trio.sleep(1)
        await one(client, Sleep(2, KEEP))
        with pytest.raises(ConflictError, match="no memory for the KV cache"):
            await one(client, WakeUp())
        assert (await client.engine_state(0)).run_state == RunState(False, 2, [SleepTag.KV_CACHE])
        async with meanwhile(client, *SHORT) as answers:
            await trio.sleep(100)
            assert client.num_requests == 1
            assert await one(client, WakeUp()) == RunState()
        assert answers


async def test_sleeping_and_pausing_are_independent(checkpoint, autojump_clock):
    async with open_slow(checkpoint) as (client, _, _):
        await one(client, Pause(KEEP))
        await one(client, Sleep(1, KEEP))
        assert await one(client, WakeUp()) == RunState(True)
        async with meanwhile(client, *SHORT):
            assert client.num_requests == 1
            await one(client, Resume())


async def test_a_shallower_sleep_does_not_wake(checkpoint, autojump_clock):
    async with open_slow(checkpoint) as (client, _, _):
        deep = await one(client, Sleep(2, KEEP))
        assert await one(client, Sleep(0, KEEP)) == await one(client, Sleep(1, KEEP)) == deep


async def test_who_may_not_wait_so_long_is_told_what_it_waits_for(checkpoint, autojump_clock):
    async with open_slow(checkpoint, max_queue_seconds=5.0) as (client, _, _):
        await one(client, Sleep(1))
        with pytest.raises(UnavailableError, match="paused or asleep"):
            await collect(client, *SHORT)
        assert client.num_requests == 0


# ---------------------------------------------------------------------- deaths


@pytest.mark.parametrize("victim", ["engine-0", "output-0"])
@pytest.mark.parametrize(("hold", "release"), HOLDS, ids=str)
async def test_who_dies_while_all_is_held_comes_back_held(checkpoint, autojump_clock, hold, release, victim):
    async with open_slow(checkpoint) as (client, house, nursery):
        expected = await collect(client, *LONG)
        async with meanwhile(client, *LONG) as answers:
            state = await one(client, hold)
            await trio.sleep(3 * STEP)
            told = [len(entry.token_ids) for entry in client.live()]
            for _ in range(5):  # nobody is taken for the cause
                house.kill(victim)
                await wait_all_tasks_blocked()
                nursery.start_soon(house.run_engine if victim == "engine-0" else house.run_output)
                await trio.sleep(10)
            assert [len(entry.token_ids) for entry in client.live()] == told
            assert (await client.engine_state(0)).run_state == state
            await one(client, release)
        assert answers == expected


@pytest.mark.parametrize(("hold", "release"), [(Sleep(1, WAIT), WakeUp()), (Pause(WAIT), Resume())], ids=str)
async def test_a_hold_whose_answer_is_lost_is_known_and_can_be_ended(checkpoint, autojump_clock, hold, release):
    async with open_slow(checkpoint) as (client, house, nursery):
        expected = await collect(client, *LONG)
        async with meanwhile(client, *LONG) as answers:

            async def ask() -> None:
                with pytest.raises(UnavailableError):
                    await one(client, hold)

            async with trio.open_nursery() as asking:
                asking.start_soon(ask)
                await trio.sleep(STEP)
                house.kill("output-0")
            await wait_all_tasks_blocked()
            nursery.start_soon(house.run_output)
            await trio.sleep(10)
            assert client.run_state.is_held
            assert (await client.engine_state(0)).run_state == client.run_state
            await one(client, release)
        assert answers == expected


async def test_a_new_engine_hears_of_the_hold_before_any_request(checkpoint, autojump_clock):
    async with open_slow(checkpoint) as (client, house, nursery), meanwhile(client, *LONG):
        await one(client, Sleep(2, KEEP))
        await one(client, WakeUp([SleepTag.KV_CACHE]))
        await one(client, Pause(KEEP))
        house.kill("engine-0")
        await wait_all_tasks_blocked()
        seen = len(house.engine_inputs)
        nursery.start_soon(house.run_engine)
        await trio.sleep(1)
        new = house.engine_inputs[seen:]
        held = [message.operation for message in new[:3] if isinstance(message, UtilityRequest)]
        assert held == [Sleep(2, KEEP), WakeUp([SleepTag.KV_CACHE]), Pause(KEEP, clear_cache=False)]
        assert all(isinstance(message, EngineCoreRequest) for message in new[3:6])
        assert (await client.engine_state(0)).run_state == RunState(True, 2, [SleepTag.WEIGHTS])
        await one(client, WakeUp())
        await one(client, Resume())


async def test_an_answer_that_comes_too_late_still_counts(checkpoint, autojump_clock):
    async with open_slow(checkpoint) as (client, house, _):
        kept = []

        def late(message, deliver):
            if isinstance(message, UtilityReply):
                kept.append(lambda: deliver(message))
            else:
                deliver(message)

        house.wire = late
        with pytest.raises(DeadlineError, match="120 s"):
            await one(client, Sleep(1, KEEP))
        assert not client.run_state.is_sleeping
        kept[-1]()
        await wait_all_tasks_blocked()
        assert client.run_state.is_sleeping


async def test_nothing_is_operated_while_an_actor_is_down(checkpoint, autojump_clock):
    async with open_slow(checkpoint) as (client, house, _):
        house.kill("engine-0")
        await wait_all_tasks_blocked()
        with pytest.raises(UnavailableError, match="engine-0"):
            await one(client, GetState())


# ---------------------------------------------------------------------- the rest


async def test_the_prefix_cache_is_reset_unless_somebody_uses_it(checkpoint, autojump_clock):
    prompt = Prompt(list(range(5, 40)), SamplingParams(max_tokens=40, seed=1))
    async with open_slow(checkpoint) as (client, _, _):
        [expected] = await collect(client, prompt)
        assert (await one(client, ResetPrefixCache())).success
        await collect(client, prompt)
        assert client.stats.prefix_cache_hits == 0
        await collect(client, prompt)
        hits = client.stats.prefix_cache_hits
        assert hits > 0
        async with meanwhile(client, prompt) as answers:
            assert not (await one(client, ResetPrefixCache())).success
            assert (await one(client, ResetPrefixCache(True))).success
        assert answers == [expected]


async def test_a_profile_has_the_steps_between_its_start_and_its_stop(checkpoint, autojump_clock, tmp_path):
    async with open_client(checkpoint, profiler_directory=str(tmp_path / "profiles")) as (client, _, _):
        with pytest.raises(ConflictError):
            await one(client, StopProfile())
        started = await one(client, StartProfile())
        with pytest.raises(ConflictError):
            await one(client, StartProfile())
        await collect(client, *SHORT)
        stopped = await one(client, StopProfile())
        assert (stopped.path, stopped.num_steps, stopped.is_cut_off) == (started.path, 4, False)
        events = json.loads(await trio.Path(stopped.path).read_bytes())["traceEvents"]
        assert [event["name"] for event in events] == [f"step {number}, 1 rows" for number in range(1, 5)]


def test_several_engines_are_held_as_far_as_any_of_them_is():
    one, other = RunState(True, 1, [SleepTag.KV_CACHE]), RunState(False, 2, [SleepTag.KV_CACHE, SleepTag.WEIGHTS])
    assert combined([]) == combined([RunState(), RunState()]) == RunState()
    assert combined([one, RunState(), other]) == RunState(True, 2, [SleepTag.KV_CACHE, SleepTag.WEIGHTS])


async def test_without_a_directory_there_are_no_profiles(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, _, _):
        with pytest.raises(ConflictError, match="--profiler-dir"):
            await one(client, StartProfile())


async def test_a_pause_that_still_waited_is_not_repeated_by_the_next_engine(checkpoint, autojump_clock):
    """Whoever asks meanwhile whether it is paused hears no, and so does the app."""
    async with open_slow(checkpoint) as (client, house, nursery):
        async with client.generate([Prompt([1], SamplingParams(max_tokens=40, seed=1))]) as generation:
            await generation.receive()
            async with trio.open_nursery() as asking:
                asking.start_soon(_expect_failure, client, Pause(WAIT))
                await trio.sleep(STEP)
                assert not (await client.engine_state(0)).run_state.is_paused
                house.kill("engine-0")
            nursery.start_soon(house.run_engine)
            while not generation.finished:
                await generation.receive()
        assert not client.run_state.is_paused


async def _expect_failure(client, operation: object) -> None:
    with pytest.raises(UnavailableError, match="has not done this"):
        await one(client, operation)
