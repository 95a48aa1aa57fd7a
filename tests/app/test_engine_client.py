"""The engine client over real actor mains (memory channels, virtual time): every request ends exactly once."""

from __future__ import annotations

import time

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from app.deadline import Deadline
from app.engine import Prompt
from app.engine_client import ActorEngineClient
from protocol.errors import BadRequestError, DeadlineError, EngineDeadError, UnavailableError
from protocol.ids import FIRST_ENGINE, EngineIndex, Epoch
from protocol.messages import AbortRequest, EngineCoreOutputs, FinishReason, ResyncRequest
from protocol.sampling import SamplingParams
from tests.helpers.clients import collect, open_client
from tests.helpers.memory_house import MemoryHouse, open_memory_house


def a_prompt(*ids: int, max_tokens: int = 8, **fields: object) -> Prompt:
    return Prompt(list(ids) or [5, 6, 7], SamplingParams(max_tokens=max_tokens, seed=1, **fields))


async def test_each_prompt_of_a_call_gets_its_tokens_and_one_end(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, _, _):
        alone = [(await collect(client, a_prompt(5, i)))[0] for i in range(3)]
        together = await collect(client, *(a_prompt(5, i) for i in range(3)))

        assert alone == together
        assert all(len(ids) == 8 and end is FinishReason.LENGTH for _, ids, _, end in together)
        assert client.num_requests == 0


async def test_leaving_early_aborts_in_the_engine_and_frees_everything(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, _):
        async with client.generate([a_prompt(max_tokens=1500), a_prompt(9, max_tokens=1500)]) as generation:
            await generation.receive()
        await wait_all_tasks_blocked()
        state = await client.engine_state(0)

        assert client.num_requests == 0
        assert state.request_ids == []
        assert state.stats.kv_blocks_used == 0
        aborts = [m for m in house.engine_inputs if isinstance(m, AbortRequest)]
        assert sorted(i for abort in aborts for i in abort.request_ids) == ["r1", "r2"]


async def test_cancelling_at_any_moment_leaves_nothing_behind(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, _, _):
        for ticks in range(30):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def cancel_later(scope=scope, ticks=ticks):
                        for _ in range(ticks):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(cancel_later)
                    await collect(client, a_prompt(max_tokens=100), a_prompt(8, max_tokens=3))
            await wait_all_tasks_blocked()
            state = await client.engine_state(0)

            assert (client.num_requests, state.request_ids, state.stats.kv_blocks_used) == (0, [], 0), ticks


async def test_a_full_queue_refuses_the_whole_call_and_starts_none_of_it(checkpoint, autojump_clock):
    async with open_client(checkpoint, max_live=3) as (client, _, _):
        async with client.generate([a_prompt(max_tokens=1500)]):
            with pytest.raises(UnavailableError) as caught:
                async with client.generate([a_prompt(), a_prompt(), a_prompt()]):
                    pass
            assert client.num_requests == 1

        assert "1 are running or queued, the limit is 3" in caught.value.message
        assert caught.value.retry_after is not None


async def test_a_further_part_of_a_request_is_taken_by_a_draining_server_and_waits_for_an_engine(
    checkpoint, autojump_clock
):
    async with open_client(checkpoint, max_live=2) as (client, house, nursery):
        [(_, expected, _, _)] = await collect(client, a_prompt())
        client.drain("the server is shutting down")
        for victim in ("engine-0", "output-0"):
            house.kill(victim)
            await wait_all_tasks_blocked()
            with pytest.raises(UnavailableError):
                await collect(client, a_prompt())
            async with client.generate([a_prompt()], goes_on=True) as generation:
                nursery.start_soon(house.run_engine if victim == "engine-0" else house.run_output)
                tokens: list[int] = []
                while not generation.finished:
                    for _, output in await generation.receive():
                        tokens += output.token_ids
            assert tokens == expected


async def test_a_further_part_of_a_request_is_taken_by_a_full_queue(checkpoint, autojump_clock):
    prompts = [a_prompt(max_tokens=1500), a_prompt(9, max_tokens=1500)]
    async with (
        open_client(checkpoint, max_live=2) as (client, _, _),
        client.generate(prompts),
        client.generate([a_prompt()], goes_on=True) as further,
    ):
        assert client.num_requests == 3
        with pytest.raises(UnavailableError, match="the limit is 2"):
            await collect(client, a_prompt())
        while not further.finished:
            await further.receive()


async def test_those_that_nobody_waits_for_wait_for_room_in_their_order(checkpoint, autojump_clock):
    begun: list[int] = []

    async with open_client(checkpoint, max_live=1) as (client, house, nursery):

        async def one(number: int) -> None:
            async with client.generate([a_prompt()], waits=True) as generation:
                begun.append(number)
                assert client.num_requests == 1
                while not generation.finished:
                    await generation.receive()

        async with client.generate([a_prompt()]), trio.open_nursery() as leaving:
            house.kill("engine-0")  # until there is another one the first request stays
            for number in range(4):
                (leaving if number == 1 else nursery).start_soon(one, number)
                await wait_all_tasks_blocked()
            assert begun == []
            leaving.cancel_scope.cancel()
        nursery.start_soon(house.run_engine)
        with trio.fail_after(60):
            while len(begun) < 3 or client.num_requests:
                await trio.sleep(0.1)

        assert begun == [0, 2, 3]


async def test_waiting_for_room_ends_with_the_request_s_time_or_that_of_the_queue(checkpoint, autojump_clock):
    prompt = a_prompt(max_tokens=1500)
    async with (
        open_client(checkpoint, max_live=1, max_queue_seconds=20) as (client, house, _),
        client.generate([prompt]) as generation,
    ):
        await generation.receive()
        house.kill("engine-0")
        began = trio.current_time()
        with pytest.raises(DeadlineError, match="within 5 s"):
            async with client.generate([prompt], Deadline(began + 5, 5, "timeout"), waits=True):
                pass
        assert trio.current_time() - began == pytest.approx(5)
        with pytest.raises(UnavailableError, match="No token within 20 s") as caught:
            async with client.generate([prompt], waits=True):
                pass

    assert caught.value.code == "queue_timeout"
    assert (client.incidents.deadlines, client.incidents.queue_timeouts) == (1, 1)


async def test_all_that_wait_for_room_hear_that_the_service_cannot_go_on(checkpoint, autojump_clock):
    errors: list[str] = []

    async with open_client(checkpoint, max_live=1) as (client, house, nursery):

        async def one() -> None:
            try:
                async with client.generate([a_prompt()], waits=True):
                    pass
            except UnavailableError as error:
                errors.append(error.message)

        async with client.generate([a_prompt()]):
            house.kill("engine-0")
            for _ in range(3):
                nursery.start_soon(one)
            await wait_all_tasks_blocked()
            client.give_up("it is broken")
            await wait_all_tasks_blocked()

    assert errors == ["Not ready: it is broken"] * 3


async def test_what_can_never_fit_is_the_caller_s_mistake(checkpoint, autojump_clock):
    async with open_client(checkpoint, max_live=2) as (client, _, _):
        with pytest.raises(BadRequestError, match="is 3; this server takes at most 2"):
            async with client.generate([a_prompt(), a_prompt(), a_prompt()]):
                pass


async def test_ending_all_aborts_them_in_the_engine_and_tells_each(checkpoint, autojump_clock):
    prompts = [a_prompt(max_tokens=1500), a_prompt(9, max_tokens=1500)]
    async with open_client(checkpoint) as (client, _, _), client.generate(prompts) as generation:
        await generation.receive()
        client.end_all(UnavailableError("shutting down"))
        with pytest.raises(UnavailableError, match="shutting down"):
            for _ in range(3):
                await generation.receive()
        await wait_all_tasks_blocked()
        assert (await client.engine_state(0)).request_ids == []


async def test_a_part_that_got_lost_on_the_last_stretch_is_told_and_not_skipped(checkpoint, autojump_clock):
    prompts = [a_prompt(max_tokens=1500)]
    async with open_client(checkpoint) as (client, _, _), client.generate(prompts) as generation:
        [(_, output)] = await generation.receive()
        later = output.offset + len(output.token_ids) + 1
        generation.put(msgspec.structs.replace(output, offset=later), FIRST_ENGINE)
        with pytest.raises(EngineDeadError, match="lost on its way"):
            for _ in range(3):
                await generation.receive()


@pytest.mark.parametrize("victim", ["engine-0", "output-0"])
async def test_while_an_actor_is_down_new_requests_are_refused(checkpoint, autojump_clock, victim):
    async with open_client(checkpoint) as (client, house, nursery):
        house.kill(victim)
        await wait_all_tasks_blocked()
        assert not client.readiness.ready
        with pytest.raises(UnavailableError):
            async with client.generate([a_prompt()]):
                pass

        nursery.start_soon(house.run_engine if victim == "engine-0" else house.run_output)
        await wait_all_tasks_blocked()
        assert client.readiness.ready


async def test_an_unanswered_operation_fails_when_its_engine_dies(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, _):
        house.wire = lambda message, deliver: None  # the answer gets lost

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_death, client)
            await wait_all_tasks_blocked()
            house.kill("engine-0")


async def _expect_death(client):
    with pytest.raises(UnavailableError, match="has not done this"):
        await client.engine_state(0)


async def test_an_operation_without_an_answer_ends_at_its_deadline(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, _):
        house.wire = lambda message, deliver: None
        began = trio.current_time()
        with pytest.raises(DeadlineError, match="10 s"):
            await client.engine_state(0)

        assert trio.current_time() - began == pytest.approx(10)


async def test_a_house_that_gives_up_ends_every_request_and_health(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, _):
        async with client.generate([a_prompt(max_tokens=1500)]) as generation:
            await generation.receive()
            house.give_up("engine-0 died 4 times within 60 s")
            with pytest.raises(EngineDeadError, match="died 4 times"):
                while True:
                    await generation.receive()

        assert not client.alive
        assert client.failed.is_set()


async def test_a_reader_that_stays_away_costs_one_delta_and_loses_no_token(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, _, _):
        expected = (await collect(client, a_prompt(max_tokens=200)))[0]
        async with client.generate([a_prompt(max_tokens=200)]) as generation:
            await trio.sleep(60)
            [(index, output)] = await generation.receive()

        text, token_ids, _, end = expected
        assert (index, output.text, output.token_ids, output.finish_reason) == (0, text, token_ids, end)
        assert generation.finished


class Lossy:
    """A wire that does to the n-th frame what the n-th letter says: keep, drop, twice, or late (after the next)."""

    def __init__(self, fates: str) -> None:
        self._fates = iter(fates)
        self._late: list = []

    def __call__(self, message, deliver) -> None:
        fate = next(self._fates, "k") if isinstance(message, EngineCoreOutputs) else "k"
        if fate in "kt":
            deliver(message)
        if fate == "t":
            deliver(message)
        late, self._late = self._late, [message] if fate == "l" else []
        for old in late:
            deliver(old)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fates=st.text("kdtl", max_size=30))
async def test_lost_doubled_and_late_frames_change_no_text(checkpoint, autojump_clock, fates):
    async with open_client(checkpoint) as (client, house, _):
        prompts = [a_prompt(5, i, max_tokens=12 + i, logprobs=1) for i in range(3)]
        expected = await collect(client, *prompts)
        house.wire = Lossy(fates)
        with trio.fail_after(120):
            assert await collect(client, *prompts) == expected


async def test_a_lost_last_frame_is_asked_for_again_at_the_next_heartbeat(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, _):
        expected = await collect(client, a_prompt())
        house.wire = Lossy("k" * 7 + "d")
        began = trio.current_time()

        assert await collect(client, a_prompt()) == expected
        assert trio.current_time() - began < 2.5
        assert any(isinstance(message, ResyncRequest) for message in house.engine_inputs)


async def test_requests_are_not_sent_before_the_subscription_was_seen(checkpoint, autojump_clock):
    house: MemoryHouse
    async with open_memory_house(checkpoint) as house, trio.open_nursery() as nursery:
        client = ActorEngineClient(max_live_requests=1)
        with pytest.raises(UnavailableError):
            async with client.generate([a_prompt()]):
                pass
        nursery.start_soon(client.run, house)
        await client.attached_once.wait()

        assert (await collect(client, a_prompt()))[0][3] is FinishReason.LENGTH
        nursery.cancel_scope.cancel()


async def test_asking_again_for_a_request_that_is_still_on_its_way_does_not_end_it(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, _):
        expected = await collect(client, a_prompt())
        epoch = house.engine_inputs[-1].epoch
        house.send_to_engine(0, ResyncRequest(epoch, 0, {"r2": 0}))  # the engine hears of it before its ADD_REQUEST
        async with client.generate([a_prompt()]) as generation:
            assert list(generation.unfinished) == ["r2"]
            outputs = []
            while not generation.finished:
                outputs += await generation.receive()
        await trio.sleep(3)

        assert [token for _, output in outputs for token in output.token_ids] == expected[0][1]


async def test_asking_again_for_an_unknown_request_gives_it_an_error_in_the_end(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, _):
        house.wire = lambda message, deliver: None if isinstance(message, EngineCoreOutputs) else deliver(message)
        async with client.generate([a_prompt(max_tokens=1)]) as generation:
            await trio.sleep(0.5)
            [request_id] = generation.unfinished
            published = []
            house.wire = lambda message, deliver: published.append(message) or deliver(message)
            house.send_to_engine(0, AbortRequest(house.engine_inputs[-1].epoch, 0, [request_id]))
            house.send_to_engine(0, ResyncRequest(house.engine_inputs[-1].epoch, 0, {"r999": 0}))
            await trio.sleep(3)

        errors = [o.error for m in published if isinstance(m, EngineCoreOutputs) for o in m.outputs if o.error]
        assert errors == ["unknown request"]


async def test_a_step_s_outputs_that_no_frame_holds_together_are_sent_in_several(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, _):
        prompts = [a_prompt(5, i, max_tokens=30) for i in range(5)]
        expected = await collect(client, *prompts)
        house.max_frame_items = 2

        assert await collect(client, *prompts) == expected


class _Sink:
    """A house that takes everything."""

    def send_to_engine(self, index: object, message: object) -> bool:
        return True

    def send_to_output(self, message: object) -> bool:
        return True

    def states(self) -> list[object]:
        return []

    def listen(self, take: object) -> None:
        pass


async def test_the_cost_of_a_choice_does_not_grow_with_their_number() -> None:
    async def seconds(count: int) -> float:
        """Of the processor, at best, to take in and to give up so many."""
        client = ActorEngineClient(max_live_requests=5000, max_queue_seconds=60)
        client._house = _Sink()
        client._dispatch.use(client._house)
        client._engines.attached |= {EngineIndex(0): Epoch(1), EngineIndex(1): Epoch(1)}
        prompts, found = [a_prompt()] * count, []
        for _ in range(5):
            began = time.process_time()
            async with client.generate(prompts):
                assert client.num_requests == count
            found.append(time.process_time() - began)
        return min(found)

    assert await seconds(2000) < 4 * 10 * await seconds(200)
