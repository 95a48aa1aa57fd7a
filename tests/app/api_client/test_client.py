"""Answers and failures of a server, as commands see them."""

from __future__ import annotations

import pytest
import trio
from attrs import evolve

from app.api_client.call_error import NoAnswerError, RefusedError
from app.api_client.models import chosen_model, model_names
from protocol.errors import BadRequestError, NotFoundError
from tests.helpers.asked_servers import DONE, chunk, lists_models, open_client, place, serves
from tests.helpers.fake_upstreams import Talk, breaks_off, says_nothing


async def test_the_key_and_the_prefix_are_sent() -> None:
    async with open_client(lists_models, place=place("secret", "/team")) as (client, server):
        assert await model_names(client) == ["first", "second"]
    assert server.had[0].target == "/team/v1/models"
    assert server.had[0].values("authorization") == ["Bearer secret"]


async def test_the_first_model_is_chosen_and_a_wrong_one_is_told_what_there_is() -> None:
    async with open_client(lists_models) as (client, _):
        assert await chosen_model(client, None) == "first"
        assert await chosen_model(client, "second") == "second"
        with pytest.raises(NotFoundError, match="first, second"):
            await chosen_model(client, "third")


async def test_a_model_that_is_named_will_do_where_a_server_tells_none() -> None:
    async def has_no_list(talk: Talk) -> None:
        await talk.whole({"detail": "Not Found"}, 404)

    async with open_client(has_no_list) as (client, _):
        assert await chosen_model(client, "mine") == "mine"
        with pytest.raises(RefusedError, match="404"):
            await chosen_model(client, None)


async def test_what_is_no_text_is_not_sent() -> None:
    async with open_client(serves(DONE)) as (client, server):
        with pytest.raises(BadRequestError, match="only text in UTF-8 can be sent"):
            await client.post("/v1/completions", {"prompt": "a\udcff"}, dict)
    assert server.had == []


async def test_nothing_that_listens_is_told_with_what_to_do() -> None:
    async with open_client(lists_models) as (client, server):
        server.is_reachable = False
        with pytest.raises(NoAnswerError, match=r"nothing listens at http://server:8000: start `\S*trillm serve`"):
            await model_names(client)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (400, {"error": {"message": "temperature must be 2 at most"}}, "answered 400: temperature must be 2 at most"),
        (422, {"detail": "a field is missing"}, "answered 422: a field is missing"),
        (500, {"error": "broken"}, "answered 500: broken"),
        (502, b"<html>\nBad gateway", "answered 502: <html>"),
        (503, b"", "answered 503 without a reason"),
        (307, b"", "a redirection"),
        (400, b"\x1b[31mred", "answered 400: [31mred"),
    ],
)
async def test_a_failure_tells_what_the_body_says(status: int, body: object, told: str) -> None:
    async def fails(talk: Talk) -> None:
        await talk.whole(body, status)

    async with open_client(fails) as (client, _):
        with pytest.raises(RefusedError) as caught:
            await client.ask("GET", "/x")
    assert told in caught.value.message
    assert caught.value.answered == status


async def test_a_server_with_keys_asks_for_one() -> None:
    async def asks_for_a_key(talk: Talk) -> None:
        await talk.whole({"error": {"message": "Unauthorized"}}, 401)

    async with open_client(asks_for_a_key) as (client, _):
        with pytest.raises(RefusedError, match=r"asks for a key: set VLLM_API_KEY.* --api-key"):
            await client.ask("GET", "/x")
    async with open_client(asks_for_a_key, place=evolve(place(), takes_own_keys=False)) as (client, _):
        with pytest.raises(RefusedError, match=r"--api-key \(VLLM_API_KEY and TRILLM_API_KEY are for"):
            await client.ask("GET", "/x")
    async with open_client(asks_for_a_key, place=place("wrong")) as (client, _):
        with pytest.raises(RefusedError, match=r"does not take this key \(from --api-key\)"):
            await client.ask("GET", "/x")


async def test_a_server_that_closes_has_broken_off() -> None:
    async with open_client(breaks_off) as (client, _):
        with pytest.raises(NoAnswerError, match="is it https:// there"):
            await client.ask("GET", "/x")


async def test_a_server_that_says_nothing_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with open_client(says_nothing, answer_seconds=7) as (client, _):
        with pytest.raises(NoAnswerError, match="not answered within 7 s"):
            await client.ask("GET", "/x")
    assert 7 <= trio.current_time() < 8


async def test_a_server_that_says_little_at_a_time_is_given_up_too(autojump_clock: trio.testing.MockClock) -> None:
    async def drips(talk: Talk) -> None:
        await talk.head()
        while True:
            await trio.sleep(1)
            await talk.data(b" ")

    async with open_client(drips, answer_seconds=7) as (client, _):
        with pytest.raises(NoAnswerError, match="not answered within 7 s"):
            await client.ask("GET", "/x")
    assert 7 <= trio.current_time() < 8


async def test_json_that_is_nested_too_deep_is_not_what_is_expected() -> None:
    async with open_client(serves(models=lambda talk: talk.whole(b"[" * 100_000))) as (client, _):
        with pytest.raises(NoAnswerError, match="not expected there"):
            await client.get("/x", list)
    async with open_client(serves(models=lambda talk: talk.whole(b"[" * 100_000, 500))) as (client, _):
        with pytest.raises(RefusedError, match="answered 500"):
            await client.ask("GET", "/x")


async def test_a_body_that_is_not_what_it_should_be_is_told() -> None:
    async with open_client(serves(models=lambda talk: talk.whole({"data": 3}))) as (client, _):
        with pytest.raises(NoAnswerError, match="/v1/models answered what is not expected there"):
            await model_names(client)


async def test_events_come_and_the_connection_is_used_again() -> None:
    async with open_client(serves(chunk("a"), chunk("b"), DONE)) as (client, server):
        for _ in range(2):
            async with client.open_stream("/v1/chat/completions", {}) as stream:
                events = []
                while more := await stream.receive():
                    events += more
            assert len(events) == 2
            assert stream.is_done
        assert server.num_connections == 1


async def test_an_error_within_a_stream_is_told_after_what_came_before_it() -> None:
    failing = serves(chunk("a"), b'data: {"error": {"message": "the engine died"}}\n\n', DONE)
    async with open_client(failing) as (client, _), client.open_stream("/x", {}) as stream:
        assert len(await stream.receive()) == 1
        with pytest.raises(RefusedError, match="ended the answer: the engine died"):
            await stream.receive()


async def test_leaving_a_stream_closes_its_connection() -> None:
    async def begins(talk: Talk) -> None:
        await talk.head(content_type="text/event-stream")
        await talk.data(chunk("a"))
        await trio.sleep_forever()

    async with open_client(begins) as (client, server):
        async with client.open_stream("/x", {}) as stream:
            await stream.receive()
        await trio.testing.wait_all_tasks_blocked()
        assert server.num_left == 1
