"""What becomes of responses after they were told: found, followed, cancelled, gone on from, deleted."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from app.factory import create_app
from app.responses.background import BackgroundResponses
from tests.helpers.app_under_test import AppUnderTest, Reply, make_app
from tests.helpers.asgi import Exchange, http_scope
from tests.helpers.stored_responses import Disk, make_store

PATH = "/v1/responses"


@asynccontextmanager
async def serving(disk: Disk | None = None, *, keeps: bool = True, **more: Any) -> AsyncIterator[AppUnderTest]:
    made = make_app()
    services = attrs.evolve(made.services, **more)
    if keeps:
        store = make_store(disk=disk)
        services = attrs.evolve(services, response_keeper=store, background=BackgroundResponses(store))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(services.background.run)
        await wait_all_tasks_blocked()
        yield AppUnderTest(create_app(services), made.engine, services)
        nursery.cancel_scope.cancel()


async def created(under_test: AppUnderTest, **fields: Any) -> dict[str, Any]:
    reply = await under_test.post(PATH, **{"input": "Hi", "max_output_tokens": 4, "temperature": 0, **fields})
    assert reply.status_code == 200, reply.text
    return dict(reply.json)


async def found(under_test: AppUnderTest, response_id: str) -> dict[str, Any]:
    reply = await ask(under_test, "GET", response_id)
    assert reply.status_code == 200, reply.text
    return dict(reply.json)


async def ask(under_test: AppUnderTest, method: str, target: str) -> Reply:
    """Of a path below the responses, with its query."""
    path, _, query = target.partition("?")
    scope = http_scope(method, unquote(f"{PATH}/{path}"), query_string=query.encode())
    exchange = Exchange(scope, b"")
    await exchange.run(under_test.app)
    return Reply(exchange)


def code_of(reply: Reply) -> tuple[int, str | None]:
    return reply.status_code, reply.json["error"]["code"]


def events_of(text: str) -> list[dict[str, Any]]:
    told = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]
    names = [line[7:] for line in text.split("\n") if line.startswith("event: ")]
    assert names == [event["type"] for event in told]
    return told


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_found_as_it_was_told_until_it_is_deleted(stream: bool) -> None:
    async with serving() as under_test:
        if stream:
            reply = await under_test.post(PATH, input="Hi", max_output_tokens=4, stream=True)
            response = events_of(reply.text)[-1]["response"]
        else:
            response = await created(under_test)
        assert response["store"] is True
        assert await found(under_test, response["id"]) == response
        reply = await ask(under_test, "DELETE", response["id"])
        assert reply.json == {"id": response["id"], "object": "response", "deleted": True}
        for method in ("GET", "DELETE"):
            reply = await ask(under_test, method, response["id"])
            assert code_of(reply) == (404, "not_found")


async def test_what_is_not_to_be_stored_is_not() -> None:
    async with serving() as under_test:
        response = await created(under_test, store=False)
        assert response["store"] is False
        assert (await ask(under_test, "GET", response["id"])).status_code == 404
        reply = await under_test.post(PATH, input="Hi", previous_response_id=response["id"])
        assert code_of(reply) == (404, "previous_response_not_found")


async def test_a_server_that_keeps_none_says_so_and_answers_all_the_same() -> None:
    async with serving(keeps=False) as under_test:
        response = await created(under_test, store=True)
        assert response["store"] is False
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            reply = await ask(under_test, method, f"{response['id']}{path}")
            assert code_of(reply) == (404, "not_found")
            assert "--no-responses-store" in reply.text
        reply = await under_test.post(PATH, input="Hi", background=True)
        assert reply.status_code == 400
        assert "keeps none" in reply.text


@pytest.mark.parametrize("name", ["resp_none", "x", "..%2Fx", "resp_" + "x" * 10_000, "resp_%00", "%C3%A4"])
async def test_ids_that_are_none_are_not_found(name: str) -> None:
    async with serving() as under_test:
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            reply = await ask(under_test, method, f"{name}{path}")
            assert reply.status_code == 404
            assert len(reply.text) < 400


async def test_what_a_response_was_an_answer_to_is_listed_in_pages() -> None:
    async with serving() as under_test:
        first = await created(under_test, input=[{"role": "user", "content": f"number {n}"} for n in range(3)])
        second = await created(under_test, input="and now", previous_response_id=first["id"])
        path = f"{second['id']}/input_items"
        whole = (await ask(under_test, "GET", f"{path}?order=asc")).json
        assert whole["object"] == "list"
        assert not whole["has_more"]
        texts = [item["content"][0]["text"] for item in whole["data"]]
        said = first["output"][0]["content"][0]["text"]
        assert texts == ["number 0", "number 1", "number 2", said, "and now"]
        told: list[Any] = []
        more, after = True, ""
        while more and len(told) < 10:
            page = (await ask(under_test, "GET", f"{path}?limit=2{after}")).json
            assert page["first_id"] == page["data"][0]["id"]
            told += page["data"]
            more, after = page["has_more"], f"&after={page['last_id']}"
        assert told == whole["data"][::-1]


async def test_no_item_of_a_conversation_is_added_to_it_again() -> None:
    item = {"type": "message", "id": "msg_a", "role": "user", "content": "Hi"}
    async with serving() as under_test:
        first = await created(under_test, input=[item])
        for again in (item, first["output"][0]):
            given = [{"role": "user", "content": "And?"}, again]
            reply = await under_test.post(PATH, input=given, previous_response_id=first["id"])
            assert reply.status_code == 400
            assert reply.json["error"]["param"] == "input[1].id"


@pytest.mark.parametrize(
    "query",
    [
        *("input_items?limit=0", "input_items?limit=101", "input_items?limit=x", "input_items?order=up"),
        *("input_items?after=msg_none", "?stream=maybe", "?stream=true&starting_after=-1"),
        "?starting_after=" + "9" * 5000,
    ],
)
async def test_queries_out_of_bounds_are_refused_in_few_words(query: str) -> None:
    async with serving() as under_test:
        response = await created(under_test)
        reply = await ask(under_test, "GET", f"{response['id']}{'' if query.startswith('?') else '/'}{query}")
        assert reply.status_code == 400
        assert len(reply.text) < 400


async def test_only_background_responses_are_streamed_later_or_cancelled() -> None:
    async with serving() as under_test:
        response = await created(under_test)
        assert (await ask(under_test, "GET", f"{response['id']}?stream=true")).status_code == 400
        assert (await ask(under_test, "POST", f"{response['id']}/cancel")).status_code == 400


async def test_a_background_response_goes_from_queued_to_completed_without_a_client() -> None:
    async with serving() as under_test:
        under_test.engine.hold()
        response = await created(under_test, background=True)
        assert response["status"] == "queued"
        assert response["output"] == []
        await wait_all_tasks_blocked()
        assert (await found(under_test, response["id"]))["status"] == "in_progress"
        reply = await under_test.post(PATH, input="Hi", previous_response_id=response["id"])
        assert reply.status_code == 400
        under_test.engine.let(4)
        await wait_all_tasks_blocked()
        whole = await found(under_test, response["id"])
        assert whole["status"] == "incomplete"
        assert whole["usage"]["output_tokens"] == 4
        under_test.engine.let(4)
        waited = await created(under_test)
        assert whole["output"][0]["content"] == waited["output"][0]["content"]


async def test_a_stream_that_was_left_is_taken_up_where_it_was() -> None:
    async with serving() as under_test, trio.open_nursery() as nursery:
        under_test.engine.hold()
        body = {"input": "Hi", "max_output_tokens": 6, "background": True, "stream": True}
        sent = json.dumps(body).encode()
        client = Exchange(http_scope("POST", PATH, [(b"content-type", b"application/json")]), sent)
        leaving = trio.CancelScope()

        async def follow() -> None:
            with leaving:
                await client.run(under_test.app)

        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        under_test.engine.let(3)
        await wait_all_tasks_blocked()
        leaving.cancel()
        await wait_all_tasks_blocked()
        before = events_of(client.data.decode())
        response_id = before[0]["response"]["id"]
        assert before[-1]["type"] == "response.output_text.delta"
        assert under_test.engine.num_requests == 1
        replies: list[Reply] = []

        async def resume(after: int) -> None:
            replies.append(await ask(under_test, "GET", f"{response_id}?stream=true&starting_after={after}"))

        nursery.start_soon(resume, before[-1]["sequence_number"])
        await wait_all_tasks_blocked()
        under_test.engine.let(3)
        await wait_all_tasks_blocked()
        after = events_of(replies[0].text)
        numbers = [event["sequence_number"] for event in before + after]
        assert numbers == list(range(len(numbers)))
        assert after[-1]["type"] == "response.incomplete"
        whole = await ask(under_test, "GET", f"{response_id}?stream=true")
        assert events_of(whole.text) == before + after
        assert after[-1]["response"] == await found(under_test, response_id)


async def test_a_cancelled_background_response_is_aborted_in_the_engine() -> None:
    async with serving() as under_test:
        under_test.engine.hold()
        response = await created(under_test, background=True)
        await wait_all_tasks_blocked()
        under_test.engine.let(3)
        await wait_all_tasks_blocked()
        assert under_test.engine.num_requests == 1
        replies = [await ask(under_test, "POST", f"{response['id']}/cancel") for _ in range(2)]
        assert [reply.json["status"] for reply in replies] == ["cancelled"] * 2
        assert under_test.engine.num_requests == 0
        assert (await found(under_test, response["id"]))["status"] == "cancelled"
        last = events_of((await ask(under_test, "GET", f"{response['id']}?stream=true")).text)[-1]
        assert last["response"]["status"] == "cancelled"
        usage = last["response"]["usage"]
        assert usage["output_tokens"] == 3
        assert usage["total_tokens"] == usage["input_tokens"] + 3


async def test_a_deleted_background_response_is_aborted_too() -> None:
    async with serving() as under_test:
        under_test.engine.hold()
        response = await created(under_test, background=True)
        await wait_all_tasks_blocked()
        assert (await ask(under_test, "DELETE", response["id"])).status_code == 200
        assert (await ask(under_test, "GET", response["id"])).status_code == 404
        await wait_all_tasks_blocked()
        assert under_test.engine.num_requests == 0


async def test_a_client_who_leaves_a_foreground_response_has_cancelled_it() -> None:
    async with serving() as under_test, trio.open_nursery() as nursery:
        under_test.engine.hold()
        sent = json.dumps({"input": "Hi", "stream": True}).encode()
        client = Exchange(http_scope("POST", PATH, [(b"content-type", b"application/json")]), sent)
        leaving = trio.CancelScope()

        async def follow() -> None:
            with leaving:
                await client.run(under_test.app)

        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        response_id = events_of(client.data.decode())[0]["response"]["id"]
        assert (await found(under_test, response_id))["status"] == "in_progress"
        under_test.engine.let(2)
        await wait_all_tasks_blocked()
        leaving.cancel()
        await wait_all_tasks_blocked()
        cancelled = await found(under_test, response_id)
        assert cancelled["status"] == "cancelled"
        assert cancelled["usage"]["output_tokens"] == 2


async def test_a_full_disk_hurts_no_answer_and_is_told_to_who_asks_for_a_stored_one() -> None:
    disk = Disk()
    async with serving(disk) as under_test:
        disk.failure = sqlite3.OperationalError("database or disk is full")
        response = await created(under_test)
        assert response["status"] == "incomplete"
        reply = await ask(under_test, "GET", response["id"])
        assert reply.status_code == 503
        assert int(reply.headers["Retry-After"]) >= 1
        assert (await under_test.post(PATH, input="Hi", background=True)).status_code == 503
        reply = await under_test.post(PATH, input="Hi", previous_response_id=response["id"])
        assert reply.status_code == 503


async def test_who_follows_a_response_that_says_nothing_hears_comments(autojump_clock: trio.abc.Clock) -> None:
    async with serving(keep_alive_seconds=5) as under_test, trio.open_nursery() as nursery:
        under_test.engine.hold()
        response = await created(under_test, background=True)

        async def let_later() -> None:
            await trio.sleep(12)
            under_test.engine.let(4)

        nursery.start_soon(let_later)
        reply = await ask(under_test, "GET", f"{response['id']}?stream=true")
        assert reply.text.count(": keep-alive\n\n") == 2
        assert events_of(reply.text)[-1]["type"] == "response.incomplete"


async def test_a_disk_that_fails_while_a_stored_stream_is_read_ends_it_without_a_last_event() -> None:
    disk = Disk()
    async with serving(disk) as under_test:
        response = await created(under_test, background=True)
        await wait_all_tasks_blocked()
        whole = events_of((await ask(under_test, "GET", f"{response['id']}?stream=true")).text)
        assert whole[-1]["type"] == "response.incomplete"
        disk.fails_after = disk.num_calls + 3
        reply = await ask(under_test, "GET", f"{response['id']}?stream=true")
        assert reply.status_code == 200
        assert events_of(reply.text) == whole


@pytest.mark.parametrize("ending", ["done", "cancelled", "error server_error"])
async def test_a_background_response_is_a_line_in_the_access_log_when_it_is_over(
    caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    caplog.set_level("INFO", logger="trillm.access")
    async with serving() as under_test:
        if ending != "done":
            under_test.engine.hold()
        response = await created(under_test, background=True)
        assert ending == "done" or under_test.services.background.num_live == 1
        if ending == "cancelled":
            await ask(under_test, "POST", f"{response['id']}/cancel")
        elif ending != "done":
            under_test.services.background.end_all("The server is shutting down")
        await wait_all_tasks_blocked()
        assert under_test.services.background.num_live == 0

    lines = [record.getMessage() for record in caplog.records]
    assert sum('"POST /v1/responses" 200' in line for line in lines) == 1
    [ended] = [line for line in lines if "BACKGROUND" in line]
    assert f'{response["id"]} "BACKGROUND /v1/responses" 200 model=' in ended
    assert ended.endswith(f"end={ending}")
    assert ("finish=length" in ended) == (ending == "done")
    assert ("+4 " in ended) == (ending == "done")


async def test_without_an_access_log_there_is_no_line_of_a_background_response(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="trillm.access")
    async with serving(logs_access=False) as under_test:
        await created(under_test, background=True)
        await wait_all_tasks_blocked()
    assert not [record for record in caplog.records if record.name == "trillm.access"]
