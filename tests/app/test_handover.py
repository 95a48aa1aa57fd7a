"""Prompts are computed in one engine and answers go on in another: each is what one engine gives by itself, whatever
dies, is lost, or is not wanted any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from trio.testing import wait_all_tasks_blocked

from app.engine import Prompt
from app.engine_client import ActorEngineClient
from app.roles import Roles
from protocol.errors import UnavailableError
from protocol.ids import EngineIndex
from protocol.kv import KvInput, KvParams
from protocol.messages import AttachEngine, EngineCoreOutputs, EngineCoreRequest, FinishReason, OutputInput
from protocol.operations import Pause, PauseMode
from protocol.pooling import Pooling, PoolingParams
from protocol.sampling import SamplingParams
from tests.app.test_going_on import EVERYTHING, deaths_of, kill_and_restart, tick
from tests.helpers.clients import collect, open_client
from tests.helpers.memory_connectors import MemoryConnectors
from tests.helpers.memory_house import MemoryHouse

PREFILL, DECODE = EngineIndex(0), EngineIndex(1)
STEP = 0.01


def a_prompt(seed: int, max_tokens: int = 12, length: int = 40, **fields: Any) -> Prompt:
    """Two full blocks, and some more."""
    ids = [5 + (seed * 31 + position * 7) % 200 for position in range(length)]
    return Prompt(ids, SamplingParams(max_tokens=max_tokens, seed=seed, **fields))


SEVERAL = [
    *(a_prompt(seed, **fields) for seed, fields in enumerate(EVERYTHING.values())),
    a_prompt(20, 1),
    a_prompt(21, 2),
    a_prompt(22, 1, logprobs=2),
    a_prompt(23, length=3),  # no full block
    a_prompt(24, length=32),
    *(attrs.evolve(a_prompt(25), sampling_params=SamplingParams(max_tokens=12, seed=seed)) for seed in (1, 2)),  # n=2
    *(Prompt(list(range(5, 55)), SamplingParams(max_tokens=0, seed=0), pooling=PoolingParams(p)) for p in Pooling),
]


@attrs.frozen
class Divided:
    client: ActorEngineClient
    house: MemoryHouse
    nursery: trio.Nursery
    connectors: MemoryConnectors

    def requests(self, index: EngineIndex) -> list[EngineCoreRequest]:
        """That this engine, as it runs now, was sent."""
        epoch = self.house._engines[index].epoch
        sent = (m for m in self.house.engine_inputs if isinstance(m, EngineCoreRequest))
        return [m for m in sent if m.epoch == epoch]

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(60):
            while not condition():
                await trio.sleep(STEP / 10)

    async def until_asked(self, index: EngineIndex) -> None:
        await self.until(lambda: self.connectors.num_asked(index) > 0)

    async def restart(self, victim: str) -> None:
        await kill_and_restart(self.house, self.nursery, victim)

    async def check_nothing_is_left(self) -> None:
        with trio.fail_after(60):
            while len(self.client._engines.attached) < len(self.house._engines):
                await trio.sleep(STEP)
        await trio.sleep(5)
        assert self.client.num_requests == 0
        for index in list(self.house._engines):
            state = await self.client.engine_state(index)
            assert (state.request_ids, state.stats.kv_blocks_used) == ([], 0)
        self.connectors.check()


@asynccontextmanager
async def open_divided(
    checkpoint: Path, num_prefill: int = 1, num_decode: int = 1, *, has_connectors: bool = True, **fields: Any
) -> AsyncIterator[Divided]:
    number = num_prefill + num_decode
    connectors = MemoryConnectors()
    more = {"connectors": connectors} if has_connectors else {}
    async with open_client(checkpoint, num_engines=number, roles=Roles(num_prefill), **more, **fields) as opened:
        divided = Divided(*opened, connectors)
        await divided.until(lambda: len(divided.client.readings()) == number)
        yield divided
    connectors.close()


async def alone(checkpoint: Path, *prompts: Prompt) -> list[tuple]:
    """What one engine says."""
    async with open_client(checkpoint) as (client, _, _):
        return await collect(client, *prompts)


# ------------------------------------------------------------------ without incident


@pytest.mark.parametrize("has_connectors", [True, False])
async def test_every_kind_of_request_is_answered_as_by_one_engine(checkpoint, autojump_clock, has_connectors):
    expected = await alone(checkpoint, *SEVERAL)
    async with open_divided(checkpoint, has_connectors=has_connectors) as divided:
        assert await collect(divided.client, *SEVERAL) == expected

        computed, went_on = divided.requests(PREFILL), divided.requests(DECODE)
        assert len(computed) == len(SEVERAL)
        assert not any(request.continuation_token_ids for request in computed)
        assert all(len(request.continuation_token_ids) == 1 for request in went_on)
        ids = {request.request_id for request in went_on}
        for request in computed:
            is_short = request.sampling_params.max_tokens < 2
            assert is_short is (request.kv is None)
            assert not (is_short and request.request_id in ids)
        has_blocks = {request.request_id for request in computed if len(request.prompt_token_ids) >= 16}
        for request in went_on:
            has_ticket = request.kv is not None and bool(request.kv.ticket)
            assert has_ticket is (has_connectors and request.request_id in has_blocks)
        assert divided.client.incidents.replays == 0
        await divided.check_nothing_is_left()


async def test_who_goes_on_loads_the_prompt_instead_of_computing_it(checkpoint, autojump_clock):
    async with open_divided(checkpoint) as divided:
        await collect(divided.client, a_prompt(1))
        await trio.sleep(2)
        computed, went_on = divided.client.readings()
        assert (computed.stats.external_cache_hits, went_on.stats.external_cache_hits) == (0, 32)
        assert divided.connectors.find_tickets[-1] in divided.connectors.tickets


async def test_a_first_token_that_ends_the_answer_ends_it_where_it_is_computed(checkpoint, autojump_clock):
    prompt = a_prompt(3, temperature=0)
    ((text, token_ids, *_),) = await alone(checkpoint, prompt)
    ends = [
        a_prompt(3, temperature=0, eos_token_ids=[token_ids[0]]),
        a_prompt(3, temperature=0, stop_token_ids=[token_ids[0]]),
        a_prompt(3, temperature=0, stop=[text[0]]),
        a_prompt(3, temperature=0, stop=[text[0]], include_stop_str_in_output=True),
        a_prompt(3, temperature=0, stop=[text[0]], min_tokens=2),
    ]
    expected = await alone(checkpoint, *ends)
    assert [len(ids) for _, ids, *_ in expected[:4]] == [1] * 4
    assert {end for *_, end in expected[:4]} == {FinishReason.STOP}
    async with open_divided(checkpoint) as divided:
        for prompt, answer in zip(ends, expected, strict=True):
            assert await collect(divided.client, prompt) == [answer]
        assert len(divided.requests(DECODE)) == 1  # the last one alone goes on
        await divided.check_nothing_is_left()


async def test_what_is_kept_for_another_server_stays_in_one_engine(checkpoint, autojump_clock):
    prompt = attrs.evolve(a_prompt(1), kv=KvParams(exports=True))
    async with open_divided(checkpoint) as divided:
        async with divided.client.generate([prompt]) as generation:
            tickets = []
            while not generation.finished:
                tickets += [output.kv_ticket for _, output in await generation.receive()]
        assert tickets[-1] in divided.connectors.tickets
        assert divided.requests(DECODE) == []


async def test_a_slow_reader_is_told_of_each_engine_what_it_did(checkpoint, autojump_clock):
    """What the second one found in its cache is what the first one computed."""
    async with open_divided(checkpoint, dummy_step_seconds=STEP) as divided:
        async with divided.client.generate([a_prompt(1), a_prompt(2)]) as generation:
            await divided.until(lambda: divided.client.num_requests == 0)
            told = []
            for engine in (PREFILL, DECODE):
                outputs = await generation.receive()
                assert [generation.engine(index) for index, _ in outputs] == [engine, engine]
                told += [(index, output.num_cached_tokens, len(output.token_ids)) for index, output in outputs]
            assert generation.finished
        assert [(index, tokens) for index, _, tokens in told] == [(0, 1), (1, 1), (0, 11), (1, 11)]
        assert [cached for _, cached, _ in told[:2]] == [0, 0]


async def test_prompts_weigh_in_the_engine_that_computes_them_and_answers_where_they_go_on(checkpoint, autojump_clock):
    async with open_divided(checkpoint, 2, 1, dummy_step_seconds=STEP) as divided:
        prompts = [a_prompt(seed, max_tokens) for seed, max_tokens in ((1, 100), (2, 2), (3, 100), (4, 2))]
        async with divided.client.generate(prompts):
            loads = divided.client._replays.loads()
            assert loads == {EngineIndex(0): 2 * 41, EngineIndex(1): 2 * 41}
            await divided.until(lambda: len(divided.requests(EngineIndex(2))) >= 2)


# ------------------------------------------------------------------ with less than all of them


@pytest.mark.parametrize("missing", [PREFILL, DECODE])
async def test_whoever_is_left_does_all(checkpoint, autojump_clock, missing):
    expected = await alone(checkpoint, *SEVERAL)
    async with open_divided(checkpoint) as divided:
        divided.house.kill(f"engine-{missing}")
        await wait_all_tasks_blocked()
        assert await collect(divided.client, *SEVERAL) == expected
        (left,) = divided.house._engines
        assert all(request.kv is None for request in divided.requests(left))


async def test_nothing_is_handed_over_to_an_engine_that_is_silent(checkpoint, autojump_clock):
    async with open_divided(checkpoint) as divided:
        divided.house.silent.add("engine-1")
        await collect(divided.client, a_prompt(1))
        assert [request.kv for request in divided.requests(PREFILL)] == [None]
        assert divided.requests(DECODE) == []


async def test_a_request_that_finds_the_engines_of_its_kind_just_gone_is_taken_by_the_others(
    checkpoint, autojump_clock, monkeypatch
):
    """Before anybody has said that they are."""
    expected = await alone(checkpoint, a_prompt(1))
    async with open_divided(checkpoint) as divided:
        send = divided.house.send_to_engine
        monkeypatch.setattr(divided.house, "send_to_engine", lambda index, m: index != PREFILL and send(index, m))
        assert await collect(divided.client, a_prompt(1)) == expected


# ------------------------------------------------------------------ deaths


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deaths=deaths_of("engine-0", "engine-1", "output-0", "kv-0", "kv-1"))
async def test_every_kind_of_request_goes_on_whatever_dies_at_any_moment(checkpoint, autojump_clock, deaths):
    expected = await alone(checkpoint, *SEVERAL)
    async with open_divided(checkpoint) as divided:

        async def kill() -> None:
            for ticks, victim in deaths:
                await tick(ticks)
                if victim.startswith("kv-"):
                    divided.connectors.die(EngineIndex(int(victim[-1])))
                    await tick(ticks % 7)
                    divided.connectors.come(EngineIndex(int(victim[-1])))
                else:
                    await divided.restart(victim)
                # So that none is taken for the cause.
                await divided.until(lambda: not any(entry.deaths for entry in divided.client.live()))

        async with trio.open_nursery() as killing:
            killing.start_soon(kill)
            assert await collect(divided.client, *SEVERAL) == expected
            killing.cancel_scope.cancel()
        await divided.check_nothing_is_left()


@asynccontextmanager
async def one_that_waits_for_its_ticket(checkpoint: Path) -> AsyncIterator[tuple[Divided, list]]:
    """Its answer is in the list when the body is left."""
    answers: list = []
    prompt = a_prompt(1)
    expected = await alone(checkpoint, prompt)
    async with open_divided(checkpoint, dummy_step_seconds=STEP) as divided:
        divided.connectors.answers = False

        async def ask() -> None:
            answers.extend(await collect(divided.client, prompt))

        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            await divided.until_asked(PREFILL)
            assert divided.client.live()[0].token_ids == []
            yield divided, answers
        assert answers == expected
        await divided.check_nothing_is_left()


async def test_an_engine_that_dies_before_the_ticket_leaves_the_prompt_to_the_others(checkpoint, autojump_clock):
    async with one_that_waits_for_its_ticket(checkpoint) as (divided, _):
        divided.house.kill("engine-0")
        await divided.until(lambda: bool(divided.requests(DECODE)))
        (request,) = divided.requests(DECODE)
        assert (request.continuation_token_ids, request.kv) == ([], None)
        assert divided.client.incidents.replays == 1


async def test_the_end_of_an_engine_that_has_handed_over_does_not_matter(checkpoint, autojump_clock):
    async with one_that_waits_for_its_ticket(checkpoint) as (divided, _):
        divided.connectors.answer()
        await divided.until(lambda: bool(divided.requests(DECODE)))
        divided.house.kill("engine-0")
        await divided.until(lambda: divided.client.num_requests == 0)
        assert len(divided.requests(DECODE)) == 1
        assert divided.client.incidents.replays == 0


async def test_who_hands_over_when_nobody_is_left_to_go_on_goes_on_itself(checkpoint, autojump_clock):
    async with one_that_waits_for_its_ticket(checkpoint) as (divided, _):
        divided.house.kill("engine-1")
        await wait_all_tasks_blocked()
        divided.connectors.answer()
        await divided.until(lambda: len(divided.requests(PREFILL)) == 2)
        again = divided.requests(PREFILL)[-1]
        assert len(again.continuation_token_ids) == 1
        assert again.kv is not None
        assert not again.kv.hands_over


async def test_who_dies_with_an_answer_leaves_it_to_whoever_is_there_with_its_ticket(checkpoint, autojump_clock):
    async with one_that_waits_for_its_ticket(checkpoint) as (divided, _):
        divided.connectors.answer()
        await divided.until(lambda: any(len(entry.token_ids) > 3 for entry in divided.client.live()))
        divided.house.kill("engine-1")
        await divided.until(lambda: len(divided.requests(PREFILL)) == 2)
        again = divided.requests(PREFILL)[-1]
        assert len(again.continuation_token_ids) > 3
        assert again.kv is not None
        assert again.kv.ticket in divided.connectors.tickets
        assert divided.client.incidents.replays == 1


async def test_an_engine_whose_connector_dies_goes_on_until_there_is_another_one(checkpoint, autojump_clock):
    async with one_that_waits_for_its_ticket(checkpoint) as (divided, _):
        divided.connectors.die(PREFILL)
        await divided.until(lambda: any(len(entry.token_ids) > 2 for entry in divided.client.live()))
        assert divided.requests(DECODE) == []
        divided.connectors.answers = True
        divided.connectors.come(PREFILL)
        await divided.until(lambda: bool(divided.requests(DECODE)))
        (request,) = divided.requests(DECODE)
        assert len(request.continuation_token_ids) > 2
        assert request.kv is not None
        assert request.kv.ticket in divided.connectors.tickets


async def test_connectors_that_answer_nothing_are_waited_for_a_while_each_time(checkpoint, autojump_clock):
    """They do say that there is room, so they are asked again: for what there is, for a ticket, and for what it is
    for."""
    async with one_that_waits_for_its_ticket(checkpoint) as (divided, _):
        await divided.until(lambda: divided.client.num_requests == 0)
        assert trio.current_time() < 3 * (5.0 + 0.5) + 1


async def test_the_prompt_is_computed_again_when_the_output_handler_dies_before_the_ticket(checkpoint, autojump_clock):
    """And is handed over then, though the engine that is to go on may be heard later than the one that computes it."""
    async with one_that_waits_for_its_ticket(checkpoint) as (divided, _):
        await divided.restart("output-0")
        divided.connectors.answer()
        await divided.until(lambda: bool(divided.requests(DECODE)))
        first, second = divided.requests(PREFILL)
        assert first.kv == second.kv == KvParams(hands_over=True)


async def test_who_is_to_go_on_waits_until_an_engine_that_does_is_heard_again(checkpoint, autojump_clock, monkeypatch):
    """Though one that computes prompts is heard before."""
    (expected,) = await alone(checkpoint, a_prompt(1, 40))
    async with open_divided(checkpoint, 1, 2, dummy_step_seconds=STEP) as divided, trio.open_nursery() as asking:
        answers: list = []

        async def ask() -> None:
            answers.extend(await collect(divided.client, a_prompt(1, 40)))

        asking.start_soon(ask)
        await divided.until(lambda: any(len(entry.token_ids) > 2 for entry in divided.client.live()))
        (entry,) = divided.client.live()
        first = entry.engine[0]
        second = EngineIndex(3 - first)
        held: list[AttachEngine] = []
        send = divided.house.send_to_output

        def hold(message: OutputInput) -> bool:
            is_held = isinstance(message, AttachEngine) and message.engine_index == second
            held.extend([message] if is_held else [])
            return is_held or send(message)

        monkeypatch.setattr(divided.house, "send_to_output", hold)
        divided.house.kill("output-0")
        divided.house.kill(f"engine-{first}")
        await wait_all_tasks_blocked()
        divided.nursery.start_soon(divided.house.run_output)
        await divided.until(lambda: list(divided.client._engines.attached) == [PREFILL])
        assert entry.engine is None
        send(held[0])
        await divided.until(lambda: bool(answers))
        assert answers == [expected]
        assert [len(divided.requests(index)) for index in (PREFILL, second)] == [1, 1]


async def test_what_another_server_has_computed_is_loaded_where_it_goes_on(checkpoint, autojump_clock):
    async with open_divided(checkpoint) as divided:
        await collect(divided.client, attrs.evolve(a_prompt(1), kv=KvParams(b"theirs")))
        assert divided.requests(PREFILL) == []
        assert [request.kv for request in divided.requests(DECODE)] == [KvParams(b"theirs")]


async def test_a_suspect_is_tried_alone_and_then_handed_over(checkpoint, autojump_clock):
    prompts = [a_prompt(1), a_prompt(2)]
    expected = await alone(checkpoint, *prompts)
    answers: dict[int, list] = {}
    async with open_divided(checkpoint, 2, 1, dummy_step_seconds=STEP) as divided:
        divided.connectors.answers = False

        async def ask(number: int) -> None:
            answers[number] = await collect(divided.client, prompts[number])

        async with trio.open_nursery() as asking:
            asking.start_soon(ask, 0)
            await divided.until(lambda: bool(divided.client.live()))
            (suspect,) = divided.client.live()
            for _ in range(2):
                await divided.until(lambda: suspect.engine is not None and len(divided.client._engines.attached) == 3)
                await divided.restart(f"engine-{suspect.engine[0]}")
            await divided.until(lambda: suspect.engine is not None)
            assert suspect.is_on_trial
            assert suspect.hands_over
            asking.start_soon(ask, 1)
            await divided.until(lambda: len(divided.client.live()) == 2)
            assert divided.client.live()[1].engine[0] != suspect.engine[0]
            divided.connectors.answer()
        assert [answers[0], answers[1]] == [[one] for one in expected]
        assert len(divided.requests(EngineIndex(2))) == 2
        await divided.check_nothing_is_left()


# ------------------------------------------------------------------ not wanted any more, and lost on the way


@pytest.mark.parametrize("has_connectors", [True, False])
async def test_a_client_may_leave_at_any_moment(checkpoint, autojump_clock, has_connectors):
    async with open_divided(checkpoint, has_connectors=has_connectors) as divided:
        for number in range(50):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as asking:
                    asking.start_soon(collect, divided.client, a_prompt(number, 200))
                    await tick(number)
                    scope.cancel()
            assert divided.client.num_requests == 0
        await divided.check_nothing_is_left()


async def test_a_client_that_leaves_before_the_ticket_leaves_nothing_to_be_handed_over(checkpoint, autojump_clock):
    async with open_divided(checkpoint) as divided:
        divided.connectors.answers = False
        async with divided.client.generate([a_prompt(1)]):
            await divided.until_asked(PREFILL)
        divided.connectors.answer()
        await divided.check_nothing_is_left()
        assert divided.requests(DECODE) == []


async def test_a_client_that_leaves_while_its_blocks_are_looked_for_is_waited_for_no_more(checkpoint, autojump_clock):
    async with open_divided(checkpoint) as divided:
        answer = divided.connectors.hear

        def hear(index: EngineIndex, address: str, message: KvInput) -> None:
            divided.connectors.answers = index == PREFILL
            answer(index, address, message)

        divided.connectors.hear = hear
        async with divided.client.generate([a_prompt(1)]) as generation:
            while not any(output.kv_ticket for _, output in await generation.receive()):
                pass
            await divided.until_asked(DECODE)
        await divided.check_nothing_is_left()


async def test_all_that_is_to_end_ends_also_what_waits_for_its_ticket(checkpoint, autojump_clock):
    async with open_divided(checkpoint) as divided:
        divided.connectors.answers = False
        ended: list[str] = []

        async def ask() -> None:
            async with divided.client.generate([a_prompt(1)]) as generation:
                while not generation.finished:
                    ended.extend(o.finish_reason for _, o in await generation.receive() if o.finish_reason)

        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            await divided.until_asked(PREFILL)
            await divided.client.operate(Pause(PauseMode.ABORT))
            await divided.until(lambda: bool(ended))
        assert ended == [FinishReason.ABORT]
        assert divided.requests(DECODE) == []


@pytest.mark.parametrize("doubles", [True, False])
async def test_a_ticket_that_comes_twice_or_is_lost_at_first_is_taken_once(checkpoint, autojump_clock, doubles):
    prompts = [a_prompt(seed) for seed in range(6)]
    expected = await alone(checkpoint, *prompts)
    async with open_divided(checkpoint) as divided:
        lost: list[EngineCoreOutputs] = []

        def wire(message, deliver) -> None:
            has_ticket = isinstance(message, EngineCoreOutputs) and any(o.kv_ticket for o in message.outputs)
            if has_ticket and not doubles and not lost:
                lost.append(message)
                return
            deliver(message)
            if has_ticket and doubles:
                deliver(message)

        divided.house.wire = wire
        assert await collect(divided.client, *prompts) == expected
        assert len(divided.requests(DECODE)) == len(prompts)
        assert bool(lost) is not doubles
        await divided.check_nothing_is_left()


async def test_nothing_is_taken_while_no_engine_is_there(checkpoint, autojump_clock):
    async with open_divided(checkpoint) as divided:
        for index in (PREFILL, DECODE):
            divided.house.kill(f"engine-{index}")
        await wait_all_tasks_blocked()
        with pytest.raises(UnavailableError):
            await collect(divided.client, a_prompt(1))
