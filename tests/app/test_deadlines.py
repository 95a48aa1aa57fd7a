"""Nothing waits for ever: each request ends within its own time, the operator's, and that of the queue."""

from __future__ import annotations

import json

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from app.deadline import Deadline, deadline_of, within
from app.engine import Prompt
from app.limits import Limits
from protocol.errors import BadRequestError, DeadlineError, UnavailableError
from protocol.messages import AbortRequest, EngineCoreRequest, FinishReason
from protocol.pooling import Pooling, PoolingParams
from protocol.sampling import SamplingParams
from tests.helpers.app_under_test import make_app
from tests.helpers.clients import collect, open_client


def a_prompt(max_tokens: int = 8, first: int = 5) -> Prompt:
    return Prompt([first, 6, 7], SamplingParams(max_tokens=max_tokens, seed=1))


def in_seconds(seconds: float) -> Deadline:
    return Deadline(trio.current_time() + seconds, seconds, "timeout")


async def receive_all(generation) -> None:
    while not generation.finished:
        await generation.receive()


def lose_everything(house) -> None:
    """From now on nothing that the engine says arrives."""
    house.wire = lambda message, deliver: None


# ---------------------------------------------------------------------- what sets the limit


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
async def test_a_timeout_that_is_none_is_the_caller_s_mistake(timeout):
    with pytest.raises(BadRequestError, match="timeout must be a number of seconds above 0") as caught:
        deadline_of(timeout, Limits())
    assert caught.value.param == "timeout"


async def test_the_shorter_of_the_request_s_and_the_server_s_limit_counts(autojump_clock):
    limits = Limits(request_seconds=10)

    assert deadline_of(None, Limits()) is None
    assert deadline_of(2, Limits()).error().message == "The request was not finished within 2 s (its timeout)"
    assert deadline_of(2, limits).seconds == 2
    for timeout in (None, 11):
        told = deadline_of(timeout, limits).error().message
        assert told == "The request was not finished within 10 s (the server's --request-timeout)"


async def test_waiting_before_the_answer_counts(autojump_clock):
    with pytest.raises(DeadlineError), within(in_seconds(3)):
        await trio.sleep_forever()
    assert trio.current_time() == pytest.approx(3)


# ---------------------------------------------------------------------- over the real actors' mains


async def test_a_late_request_ends_with_its_error_and_is_dropped_everywhere(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, _):
        lose_everything(house)
        began = trio.current_time()
        with pytest.raises(DeadlineError, match="within 2 s"):
            await collect(client, a_prompt(1500), a_prompt(1500, 9), deadline=in_seconds(2))

        assert trio.current_time() - began == pytest.approx(2, abs=0.1)
        assert client.num_requests == 0
        assert client.incidents.deadlines == 1
        aborted = [i for m in house.engine_inputs if isinstance(m, AbortRequest) for i in m.request_ids]
        assert sorted(aborted) == ["r1", "r2"]


async def test_a_later_request_with_less_time_is_not_waited_for_behind_an_earlier_one(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, _nursery):
        lose_everything(house)
        began = trio.current_time()
        async with client.generate([a_prompt()], in_seconds(100)):
            await trio.sleep(1)
            with pytest.raises(DeadlineError):
                await collect(client, a_prompt(), deadline=in_seconds(1))
            assert trio.current_time() - began == pytest.approx(2, abs=0.1)
            assert client.num_requests == 1


async def test_a_request_in_time_does_not_hear_of_its_deadline(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, _, _):
        assert await collect(client, a_prompt(), deadline=in_seconds(5)) == await collect(client, a_prompt())
        await trio.sleep(20)
        assert client.incidents.deadlines == 0


async def test_what_came_before_the_deadline_is_still_handed_out(checkpoint, autojump_clock):
    prompts = [a_prompt(1500)]
    async with open_client(checkpoint) as (client, house, _), client.generate(prompts, in_seconds(2)) as generation:
        assert await generation.receive()
        lose_everything(house)
        with pytest.raises(DeadlineError):
            await receive_all(generation)


async def test_a_request_whose_engine_does_not_come_back_ends_too(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, _):
        async with client.generate([a_prompt(1500)], in_seconds(5)) as generation:
            house.kill("engine-0")
            with pytest.raises(DeadlineError):
                await receive_all(generation)
        assert client.num_requests == 0


async def test_a_deadline_is_the_same_after_the_engine_s_death(checkpoint, autojump_clock):
    async with open_client(checkpoint) as (client, house, nursery):
        async with client.generate([a_prompt(1500)], in_seconds(50)) as generation:
            await generation.receive()
            house.kill("engine-0")
            await wait_all_tasks_blocked()
            await trio.sleep(7)
            nursery.start_soon(house.run_engine)
            await wait_all_tasks_blocked()

        told = [m.deadline for m in house.engine_inputs if isinstance(m, EngineCoreRequest)]
        assert len(told) == 2
        assert told[0] == told[1] is not None
        assert client.incidents.replays == 1
        assert client.incidents.deaths == {"engine-0": 1}


# ---------------------------------------------------------------------- the queue's limit


async def test_a_request_without_a_first_token_in_time_is_turned_away_for_later(checkpoint, autojump_clock):
    async with open_client(checkpoint, max_queue_seconds=3) as (client, house, _):
        lose_everything(house)
        with pytest.raises(UnavailableError, match="No token within 3 s") as caught:
            await collect(client, a_prompt())

        assert (caught.value.code, caught.value.status) == ("queue_timeout", 503)
        assert caught.value.retry_after is not None
        assert client.incidents.queue_timeouts == 1


async def test_with_its_first_token_a_request_has_left_the_queue(checkpoint, autojump_clock):
    async with open_client(checkpoint, max_queue_seconds=3) as (client, house, _):
        async with client.generate([a_prompt(1500)]) as generation:
            await generation.receive()
            lose_everything(house)
            await trio.sleep(30)
            assert client.num_requests == 1
        assert client.incidents.queue_timeouts == 0


async def test_inputs_that_wait_for_others_of_their_call_to_be_embedded_are_not_taken_for_queued(
    checkpoint, autojump_clock
):
    async with open_client(checkpoint, max_queue_seconds=3, max_num_seqs=1, dummy_step_seconds=2) as (client, _, _):
        params, pooling = SamplingParams(max_tokens=0, seed=0), PoolingParams(Pooling.LAST)
        prompts = [Prompt([5, 6, 7 + i], params, pooling=pooling) for i in range(10)]
        ends = [end for *_, end in await collect(client, *prompts)]
        assert ends == [FinishReason.STOP] * 10
        assert client.incidents.queue_timeouts == 0


async def test_a_call_whose_first_choice_speaks_is_not_taken_for_queued(checkpoint, autojump_clock):
    """The second waits behind it, in an engine that runs one at a time."""
    async with open_client(checkpoint, max_queue_seconds=3) as (client, house, _):
        async with client.generate([a_prompt(1500), a_prompt(1500)]) as generation:
            await generation.receive()
            for entry in client.live()[1:]:
                entry.token_ids.clear()
            lose_everything(house)
            await trio.sleep(30)
            assert client.num_requests == 2
        assert client.incidents.queue_timeouts == 0


# ---------------------------------------------------------------------- over HTTP


async def test_a_plain_answer_that_is_late_is_a_504_that_says_not_to_try_again(autojump_clock):
    under_test = make_app()
    under_test.engine.hold()
    reply = await under_test.complete(timeout=2)

    assert reply.status_code == 504
    assert reply.headers["X-Should-Retry"] == "false"
    assert reply.json["error"] == {
        "message": "The request was not finished within 2 s (its timeout)",
        "type": "timeout_error",
        "param": "timeout",
        "code": "deadline_exceeded",
    }
    assert under_test.engine.num_aborted == 1


async def test_a_stream_that_is_late_tells_it_and_ends_properly(autojump_clock):
    under_test = make_app(limits=Limits(request_seconds=4))
    under_test.engine.hold()
    under_test.engine.let(3)
    reply = await under_test.chat(stream=True, timeout=20)

    *_, last, done, rest = reply.text.split("\n\n")
    assert reply.status_code == 200
    assert (done, rest) == ("data: [DONE]", "")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    assert "--request-timeout" in last
    assert under_test.engine.num_aborted == 1


@pytest.mark.parametrize("timeout", [0, -1, "soon", [], 1e400])
async def test_a_wrong_timeout_is_refused_by_name(timeout):
    under_test = make_app()
    for reply in (await under_test.complete(timeout=timeout), await under_test.chat(timeout=timeout)):
        assert reply.status_code == 400
    assert under_test.engine.prompts == []


async def test_an_answer_in_time_is_none_the_worse(autojump_clock):
    reply = await make_app().complete(timeout=60, max_tokens=3)

    assert reply.json["choices"][0]["finish_reason"] == FinishReason.LENGTH
