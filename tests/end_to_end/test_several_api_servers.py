"""Several API servers on one listening socket, as processes: what one does all know, and what dies is missed by nobody
who was not connected to it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from tests.helpers.adapters import write_adapter
from tests.helpers.processes import owner_of_connection
from tests.helpers.server import Server, open_process, open_server

pytestmark = pytest.mark.process

TWO = ("--api-server-count", "2")
ONE = httpx.Limits(max_connections=1)
SLOW = ("--dummy-step-seconds", "0.01")
SLOWER = ("--dummy-step-seconds", "0.03")
"""So that no stream is over before all have begun, and everybody has been asked."""
BODIES = [
    {"prompt": f"The quick brown fox {n}", "max_tokens": 80, "temperature": n % 2, "seed": n, "ignore_eos": True}
    for n in range(8)
]


@asynccontextmanager
async def open_two(checkpoint: Path, *flags: str) -> AsyncIterator[Server]:
    """Both take requests."""
    async with open_server(checkpoint, *TWO, *flags) as server:
        await until_both_serve(server)
        yield server


async def until_both_serve(server: Server) -> None:
    """Each says so for itself."""
    seen: set[str | None] = set()
    while not {"api-0", "api-1"} <= seen:
        async with connection(server) as (name, http):
            if (await http.get("/ready")).status_code == 200:
                seen.add(name)
            else:
                await trio.sleep(0.02)


@asynccontextmanager
async def connection(server: Server) -> AsyncIterator[tuple[str | None, httpx.AsyncClient]]:
    """A client with one connection, and which API server has that; None if it has died since."""
    async with server.client(limits=ONE, verify=False) as http:
        reply = await http.get("/version")
        port = reply.extensions["network_stream"].get_extra_info("client_addr")[1]
        yield owner_of_connection(port, server.children()), http


@asynccontextmanager
async def connected(server: Server, name: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose connection this API server has."""
    while True:
        async with connection(server) as (found, http):
            if found == name:
                yield http
                return


@attrs.define
class Stream:
    """What one client has read."""

    server: str
    """Which has its connection."""
    text: str = ""
    ends: list[str] = attrs.field(factory=list)
    error: str | None = None
    is_broken: bool = False
    """The connection was lost under it."""


async def read(server: Server, name: str, body: dict, streams: list[Stream], index: int) -> None:
    stream = streams[index] = Stream(name)
    async with connected(server, name) as http:
        try:
            async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply:
                assert reply.status_code == 200, await reply.aread()
                async for line in reply.aiter_lines():
                    if line and line != "data: [DONE]":
                        take(stream, json.loads(line.removeprefix("data: ")))
        except httpx.TransportError:
            stream.is_broken = True


def take(stream: Stream, event: dict) -> None:
    if "error" in event:
        stream.error = event["error"]["message"]
        return
    [choice] = event["choices"]
    stream.text += choice["text"]
    stream.ends += [choice["finish_reason"]] * (choice["finish_reason"] is not None)


@asynccontextmanager
async def streams(server: Server, bodies: list[dict] = BODIES) -> AsyncIterator[list[Stream]]:
    """All are under way inside, those of even numbers at the first API server, and over afterwards."""
    found = [Stream("")] * len(bodies)
    async with trio.open_nursery() as nursery:
        for index, body in enumerate(bodies):
            nursery.start_soon(read, server, f"api-{index % 2}", body, found, index)
        while not all(stream.text for stream in found):
            await trio.sleep(0.01)
        yield found


def texts(found: list[Stream]) -> list[str]:
    """Of streams that all came to their end."""
    assert all(len(stream.ends) == 1 and stream.error is None and not stream.is_broken for stream in found), found
    return [stream.text for stream in found]


async def number(http: httpx.AsyncClient, name: str) -> float:
    text = (await http.get("/metrics")).text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))


async def of_each(server: Server, name: str) -> list[float]:
    """What each API server tells."""
    found = []
    for index in range(2):
        async with connected(server, f"api-{index}") as http:
            found.append(await number(http, name))
    return found


async def test_connections_spread_each_tells_of_all_and_sigterm_lets_the_streams_of_all_finish(checkpoint):
    async with open_two(checkpoint, *SLOWER) as server:
        assert set(server.children()) == {"engine-0", "api-0", "api-1", "output-0", "output-1"}
        async with streams(server) as expected:
            for index in range(2):
                async with connected(server, f"api-{index}") as http:
                    assert (await http.get("/load")).json() == {"server_load": 8}
                    assert await number(http, "trillm:requests_live") == 8
                    assert await number(http, "vllm:num_requests_running") == 8
        for name, value in {
            "vllm:generation_tokens_total": 8 * 80,
            "vllm:request_success_total": 8,
            "vllm:time_to_first_token_seconds_count": 8,
            "trillm:requests_live": 0,
        }.items():
            assert await of_each(server, name) == [value, value], name
        assert len(set(await of_each(server, "trillm:engine_steps_total"))) == 1
        async with streams(server) as found:
            server.signal(signal.SIGTERM)
            await server.until_said(re.compile("draining: 2 API servers"))
            await until_refused(server)
        assert texts(found) == texts(expected)
        assert await server.wait() == 0
        await server.until_silent()
        assert not any("killed" in line or "started again" in line for line in server.log)


async def until_refused(server: Server) -> None:
    """As soon as all have closed the listening socket."""
    for _ in range(2000):
        try:
            async with server.client() as http:
                await http.get("/version")
        except httpx.TransportError:
            return
        await trio.sleep(0.005)
    raise AssertionError("connections are still taken")


async def test_who_is_killed_takes_its_own_streams_and_nobody_else_s(checkpoint):
    async with open_two(checkpoint, *SLOW) as server:
        async with streams(server) as expected:
            pass
        for victims in (["output-1"], ["engine-0", "output-0"]):
            async with streams(server) as found:
                for name in victims:
                    os.kill(server.children()[name], signal.SIGKILL)
            assert texts(found) == texts(expected), victims
            await until_both_serve(server)
        async with connected(server, "api-1") as http:
            counted = await number(http, "vllm:generation_tokens_total")
            async with streams(server) as found:
                os.kill(server.children()["api-0"], signal.SIGKILL)
                while await number(http, "vllm:num_requests_running") > 4:  # the engine drops what nobody reads
                    await trio.sleep(0.01)
                assert (await http.get("/ready")).status_code == 200
            assert [stream.is_broken for stream in found] == [True, False] * 4
            assert texts(found[1::2]) == texts(expected)[1::2]
            await until_both_serve(server)
            assert await number(http, "vllm:generation_tokens_total") >= counted + 4 * 80
            assert await number(http, "trillm:requests_live") == 0
        async with streams(server) as found:
            pass
        assert texts(found) == texts(expected)
        houses = [await house(server, name) for name in ("api-0", "api-1")]
        assert len({told["started_at"] for told in houses}) == 1
        for told in houses:
            deaths = {actor["name"]: actor["deaths"] for actor in told["actors"]}
            assert deaths == {"app": 0, "engine-0": 1, "api-0": 1, "api-1": 0, "output-0": 2, "output-1": 1}
        assert not any("Traceback" in line for line in server.log)


async def house(server: Server, name: str) -> dict:
    async with connected(server, name) as http:
        return (await http.get("/house")).json()


@pytest.mark.parametrize("flags", [(), ("--shutdown-timeout", "0.2")], ids=["second signal", "deadline"])
async def test_what_is_cut_off_is_told_so_by_each(checkpoint, flags):
    bodies = [body | {"max_tokens": 1500} for body in BODIES]
    async with open_two(checkpoint, *SLOW, *flags) as server:
        async with streams(server, bodies) as found:
            server.signal(signal.SIGTERM)
            if not flags:
                await server.until_said(re.compile("draining: 2 API servers"))
                server.signal(signal.SIGTERM)
        assert {stream.error for stream in found} == {"The server is shutting down"}
        assert await server.wait() == 0


async def test_an_engine_that_is_killed_while_it_is_paused_comes_back_paused_for_all(checkpoint):
    async with open_two(checkpoint, *SLOW) as server, connected(server, "api-1") as second:
        async with connected(server, "api-0") as first:
            assert (await first.post("/pause")).json()["is_paused"]
        os.kill(server.children()["engine-0"], signal.SIGKILL)
        while (await second.get("/ready")).status_code == 200:
            await trio.sleep(0.005)
        os.kill(server.children()["api-0"], signal.SIGKILL)
        await until_both_serve(server)
        found = [Stream("")] * 4
        async with trio.open_nursery() as nursery:
            for index, body in enumerate(BODIES[:4]):
                nursery.start_soon(read, server, f"api-{index % 2}", body, found, index)
            while await number(second, "vllm:num_requests_waiting") < 4:
                await trio.sleep(0.01)
            assert not any(stream.text for stream in found)
            assert (await second.post("/resume")).status_code == 200
        assert all(texts(found))


async def test_an_adapter_that_one_loads_all_serve_also_after_a_death(checkpoint, tmp_path):
    flags = ("--enable-lora", "--allow-runtime-lora-updating", "--lora-modules")
    old, new = write_adapter(tmp_path / "old"), write_adapter(tmp_path / "new")
    async with open_two(checkpoint, *flags, f"old={old}") as server:
        async with connected(server, "api-0") as http:
            body = {"lora_name": "new", "lora_path": str(new)}
            assert (await http.post("/v1/load_lora_adapter", json=body)).status_code == 200
            assert (await http.post("/v1/unload_lora_adapter", json={"lora_name": "old"})).status_code == 200
        os.kill(server.children()["api-1"], signal.SIGKILL)
        await until_both_serve(server)
        for index in range(2):
            async with connected(server, f"api-{index}") as http:
                assert [model["id"] for model in (await http.get("/v1/models")).json()["data"]] == [
                    checkpoint.name,
                    "new",
                ]
                asked = {"model": "new", "prompt": "a", "max_tokens": 2}
                assert (await http.post("/v1/completions", json=asked)).status_code == 200
                assert (await http.post("/v1/completions", json=asked | {"model": "old"})).status_code == 404


async def test_what_cannot_be_served_is_said_once_and_no_process_is_left(checkpoint, tmp_path):
    path = write_adapter(tmp_path / "one", r=99)
    command = ["--load-format", "dummy", "--port", "0", *TWO, "--lora-modules", f"one={path}"]
    async with open_process([sys.executable, "-m", "app.cli", "serve", str(checkpoint), *command]) as server:
        assert await server.wait() == 1
        await server.until_silent()
        assert [line for line in server.log if "rank 99" in line and "CRITICAL" in line]
