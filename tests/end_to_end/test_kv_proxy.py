"""Servers behind `trillm proxy`, and behind one of vLLM's kind: some compute prompts, others go on, over TCP. What does
not come, or is not to be believed, is computed.
"""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import msgspec
import pytest
import trio

from protocol.kv_ticket import MAC_BYTES, read_ticket
from scripts.chaos_run.answer import Told
from tests.helpers.kv_servers import is_at_rest, metrics, until_told
from tests.helpers.proxies import open_proxy
from tests.helpers.server import Server, open_server

pytestmark = pytest.mark.process

LENGTH = 200
WHOLE = 192
"""Of these, those in full blocks."""
LOADED = 'vllm:external_prefix_cache_hits_total{engine="0"}'
EXPIRED = 'trillm:kv_leases_expired_total{engine="0"}'
ASKED_FIRST = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def prompt(number: int) -> list[int]:
    return [50 + (number * 37 + place * place) % 400 for place in range(LENGTH)]


def words(number: int) -> str:
    return f"{number} " + "The harbour was quiet when the first boats came home. " * 8


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": prompt(1), "temperature": 0, "logprobs": 2}),
    ("/v1/completions", {"prompt": prompt(2), "temperature": 1, "seed": 5, "stream": True}),
    ("/v1/completions", {"prompt": words(3), "temperature": 1, "seed": 6, "stop": ["ar"]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": words(4)}], "seed": 7, "stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": words(5)}], "seed": 8, "logprobs": True}),
]


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "key"
    path.write_text("k" * 40)
    return path


def connected(key: Path, policy: str = "recompute", **extra: object) -> tuple[str, str]:
    """Flags of a server that others take over from, over TCP."""
    more = {"key_file": str(key), "transports": ["tcp"], **extra}
    config = {"kv_port": 0, "kv_load_failure_policy": policy, "kv_connector_extra_config": more}
    return "--kv-transfer-config", json.dumps(config | {"kv_connector": "TrillmConnector", "kv_role": "kv_both"})


class Proxy:
    """As vLLM's toy proxy: it knows nothing of either server but their addresses."""

    def __init__(self, prefill: httpx.AsyncClient) -> None:
        self._prefill = prefill
        self._num_requests = 0

    async def first(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the second server is to be sent."""
        self._num_requests += 1
        asked = body | {"kv_transfer_params": ASKED_FIRST, "max_tokens": 1, "stream": False}
        asked.pop("stream_options", None)
        reply = await self._prefill.post(path, json=asked, headers=self._headers())
        assert reply.status_code == 200, reply.text
        return body | {"kv_transfer_params": reply.json()["kv_transfer_params"]}

    def _headers(self) -> dict[str, str]:
        return {"X-Request-Id": f"request-{self._num_requests}"}


async def answer(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> Told:
    told = Told()
    if body.get("stream"):
        body = body | {"stream_options": {"include_usage": True}}
        async with http.stream("POST", path, json=body, headers=headers) as reply:
            assert reply.status_code == 200
            async for data in reply.aiter_bytes():
                told.feed(data)
    else:
        reply = await http.post(path, json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        told.take_whole(reply.json())
    assert told.complaint() is None
    return told


def kill(server: Server) -> None:
    """With its actors, as if its host were gone."""
    if server.process.poll() is None:
        for pid in (server.pid, *server.children().values()):
            os.kill(pid, signal.SIGKILL)


async def until_failed(server: Server, *kinds: str, times: int = 1) -> None:
    """In one of these ways."""
    names = [f'trillm:kv_failures_total{{engine="0",kind="{kind}"}}' for kind in kinds]
    await until_told(server, lambda told: sum(told.get(name, 0) for name in names) >= times)


def full(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"max_tokens": 40}


def greedy(number: int) -> dict[str, Any]:
    return full({"prompt": prompt(number), "temperature": 0})


async def test_what_two_servers_say_behind_a_proxy_is_what_one_says(checkpoint, key):
    async with open_server(checkpoint) as one, one.client() as http:
        expected = [await answer(http, path, full(body)) for path, body in BODIES]
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_server(checkpoint, *connected(key)))
        second = await stack.enter_async_context(open_server(checkpoint, *connected(key)))
        proxy = await stack.enter_async_context(open_proxy([first], [second]))
        front = await stack.enter_async_context(proxy.client())
        found: list[Told | None] = [None] * len(BODIES)

        async def ask(index: int) -> None:
            path, body = BODIES[index]
            found[index] = await answer(front, path, full(body))

        async with trio.open_nursery() as nursery:
            for index in range(len(BODIES)):
                nursery.start_soon(ask, index)
        assert [one.comparable() for one in found if one] == [one.comparable() for one in expected]
        counts: dict[str, float] = {}

        def is_all_told(told: dict[str, float]) -> bool:
            counts.update(told)
            return is_at_rest(told) and told.get('trillm:kv_transfers_total{engine="0",transport="tcp"}') == len(BODIES)

        await until_told(second, is_all_told)
        assert counts['trillm:kv_found_blocks_total{engine="0",tier="peer"}'] > 9 * len(BODIES)
        # Of each prompt only what fills no block was computed here.
        asked, hits = (counts[f'vllm:external_prefix_cache_{name}_total{{engine="0"}}'] for name in ("queries", "hits"))
        assert asked == hits
        assert not [name for name in counts if name.startswith("trillm:kv_failures_total") and counts[name]]
        await until_told(first, is_at_rest)  # every lease was given back
        assert (await metrics(front))['trillm:proxy_answers_total{way="handed_over"}'] == len(BODIES)
        work = f" way=handed_over prefill={first.url} decode={second.url} "
        assert sum(work in line for line in proxy.log) == len(BODIES)
        assert not any("ready" in line for line in proxy.log)  # nobody had asked the servers
        assert {model["id"] for model in (await front.get("/v1/models")).json()["data"]}


async def test_a_decode_server_that_cannot_take_over_computes_and_is_told_of(checkpoint, key, tmp_path):
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_server(checkpoint, *connected(key)))
        plain = await stack.enter_async_context(open_server(checkpoint))
        proxy = await stack.enter_async_context(open_proxy([first], [plain]))
        front, http = [await stack.enter_async_context(server.client()) for server in (proxy, plain)]
        for path, body in BODIES[:2]:
            told = await answer(front, path, full(body))
            assert told.comparable() == (await answer(http, path, full(body))).comparable()
        assert (await metrics(front))['trillm:proxy_answers_total{way="not_taken"}'] == 2
        other_key = tmp_path / "key"
        other_key.write_text("o" * 40)
        stranger = await stack.enter_async_context(open_server(checkpoint, *connected(other_key)))
        other = await stack.enter_async_context(open_proxy([first], [stranger]))
        unheard = await stack.enter_async_context(other.client())
        for path, body in BODIES[:2]:
            await answer(unheard, path, full(body))
        assert (await metrics(unheard))['trillm:proxy_answers_total{way="not_taken"}'] == 2
        warned = f"decode server {plain.url} has no KV connector: it needs a --kv-transfer-config"
        assert sum(warned in line for line in proxy.log) == 1


async def test_what_a_killed_server_did_behind_a_proxy_another_one_does(checkpoint, key):
    """Unless something of its answer was told already: then the stream says that no more will come."""
    slow = ("--dummy-step-seconds", "0.03")
    stream = greedy(1) | {"max_tokens": 200, "stream": True, "stream_options": {"include_usage": True}}
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_server(checkpoint, *connected(key)))
        others = [await stack.enter_async_context(open_server(checkpoint, *connected(key), *slow)) for _ in range(2)]
        proxy = await stack.enter_async_context(open_proxy([first], others))
        front = await stack.enter_async_context(proxy.client())
        expected = await answer(front, PATH, greedy(0))

        async def that_decodes(*but: Server) -> Server:
            with trio.fail_after(10):
                while True:
                    told = await metrics(front)
                    for server in others:
                        busy = f'trillm:proxy_requests_in_flight{{role="decode",server="{server.url}"}}'
                        if server not in but and told[busy]:
                            return server

        told, again = Told(), Told()
        async with front.stream("POST", PATH, json=stream) as reply, trio.open_nursery() as nursery:
            chunks = reply.aiter_bytes()
            told.feed(await anext(chunks))
            streaming = await that_decodes()

            async def ask() -> None:
                again.take_whole((await front.post(PATH, json=greedy(0))).json())

            nursery.start_soon(ask)
            kill(await that_decodes(streaming))  # which has said nothing yet
            async for data in chunks:
                told.feed(data)
        assert told.complaint() is None
        assert again.comparable() == expected.comparable()

        kill(first)
        assert (await answer(front, PATH, greedy(0))).comparable() == expected.comparable()
        ways = [(await metrics(front))[f'trillm:proxy_answers_total{{way="{way}"}}'] for way in WAYS]
        assert ways == [2, 1, 1]

        told = Told()
        async with front.stream("POST", PATH, json=stream) as reply:
            async for data in reply.aiter_bytes():
                told.feed(data)
                kill(streaming)
        assert told.error is not None
        assert "has broken off" in told.error
        reply = await front.post(PATH, json=greedy(2))
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "upstream_unreachable")
        assert (await front.get("/health")).status_code == 503
        assert not any("Traceback" in line for line in proxy.log), proxy.log


WAYS = ("handed_over", "not_taken", "recomputed")
PATH = "/v1/completions"


@attrs.frozen
class Servers:
    """By name, with a client of each."""

    servers: dict[str, Server]
    http: dict[str, httpx.AsyncClient]
    expected: dict[int, dict[str, Any]]
    """What is to be said to each of the greedy bodies, by number."""

    def proxy(self) -> Proxy:
        return Proxy(self.http["first"])

    async def check(self, name: str, number: int, body: dict[str, Any] | None = None) -> None:
        """This server says what is to be said."""
        told = await answer(self.http[name], PATH, body or greedy(number))
        assert told.comparable() == self.expected[number]

    async def loaded(self, name: str) -> float:
        """Tokens."""
        return (await metrics(self.http[name])).get(LOADED, 0)


@asynccontextmanager
async def open_several(checkpoint: Path, **flags: tuple[str, ...]) -> AsyncIterator[Servers]:
    servers: dict[str, Server] = {}
    http: dict[str, httpx.AsyncClient] = {}
    async with AsyncExitStack() as stack:
        for name, one in flags.items():
            servers[name] = await stack.enter_async_context(open_server(checkpoint, *one))
            http[name] = await stack.enter_async_context(servers[name].client())
        bodies = map(greedy, range(4))
        expected = [(await answer(http["first"], PATH, body)).comparable() for body in bodies]
        yield Servers(servers, http, dict(enumerate(expected)))
        for server in servers.values():
            assert not any("Traceback" in line for line in server.log), server.log


def forged(told: dict[str, Any], **changes: object) -> dict[str, Any]:
    """The same ticket with other words, signed by somebody who does not know the key."""
    ticket = base64.urlsafe_b64decode(told["ticket"])
    words = msgspec.msgpack.encode(msgspec.structs.replace(read_ticket(ticket), **changes))
    return told | {"ticket": base64.urlsafe_b64encode(ticket[:MAC_BYTES] + words).decode()}


async def test_a_ticket_that_is_not_to_be_believed_is_of_no_use(checkpoint, key, tmp_path):
    other_key = tmp_path / "key"
    other_key.write_text("o" * 40)
    async with open_several(
        checkpoint,
        first=connected(key),
        second=connected(key),
        stranger=connected(other_key),
        coarse=(*connected(key), "--block-size", "32"),
    ) as several:
        body = await several.proxy().first(PATH, greedy(0))
        for number, changes in ((0, {"host": "127.0.0.2"}), (1, {"num_blocks": 5})):
            evil = {"kv_transfer_params": forged(body["kv_transfer_params"], **changes)}
            await several.check("second", number, greedy(number) | evil)
        await several.check("stranger", 0, body)
        await several.check("coarse", 0, body)  # whose blocks are others
        await until_failed(several.servers["second"], "refused", times=2)
        await until_failed(several.servers["stranger"], "refused")
        await until_failed(several.servers["coarse"], "layout")
        for name in ("second", "stranger", "coarse"):
            assert await several.loaded(name) == 0
        await several.check("second", 2, await several.proxy().first(PATH, greedy(2)))
        await until_told(several.servers["second"], lambda told: told.get(LOADED, 0) == WHOLE)


async def test_what_does_not_come_is_computed_or_fails_as_it_was_asked_for(checkpoint, key):
    async with open_several(
        checkpoint,
        first=connected(key, lease_seconds=2),
        second=connected(key),
        strict=connected(key, "fail"),
    ) as several:
        bodies = {number: await several.proxy().first(PATH, greedy(number)) for number in range(3)}
        await several.check("strict", 0, bodies[0])  # whose blocks have come
        await until_told(several.servers["strict"], lambda told: told.get(LOADED, 0) == WHOLE)
        await until_told(several.servers["first"], lambda told: told.get(EXPIRED) == 2)
        await several.check("second", 1, bodies[1])
        await until_failed(several.servers["second"], "expired")
        await check_that_it_fails(several, bodies[1])

        bodies = {number: await several.proxy().first(PATH, greedy(number)) for number in (2, 3)}
        kill(several.servers["first"])
        await several.check("second", 2, bodies[2])
        await until_failed(several.servers["second"], "unreachable", "broken")  # its socket goes with its last thread
        await check_that_it_fails(several, bodies[3])
        await several.check("strict", 3)
        for name in ("second", "strict"):
            await until_told(several.servers[name], is_at_rest)


async def check_that_it_fails(several: Servers, body: dict[str, Any]) -> None:
    reply = await several.http["strict"].post(PATH, json=body)
    assert reply.status_code >= 500
    assert "0 of 12 KV blocks of the prompt could be loaded: " in reply.json()["error"]["message"]
    told = Told()
    async with several.http["strict"].stream("POST", PATH, json=body | {"stream": True}) as streamed:
        async for data in streamed.aiter_bytes():
            told.feed(data)
    assert told.error is not None
    assert "KV blocks of the prompt could be loaded: " in told.error
