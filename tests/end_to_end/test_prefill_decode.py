"""Prompts are computed by one engine and answers go on in another, as processes: nobody sees it in what they are told,
whichever of the two dies or stops, or either one's connector.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from actors.kv.kept_conversations import MAX_KEPT
from tests.end_to_end.test_several_engines import each
from tests.helpers.answers_read import answers, comparable
from tests.helpers.kv_servers import (
    actors,
    descriptors,
    is_at_rest,
    mapped_windows,
    shared_memory,
    until,
    until_told,
)
from tests.helpers.server import Server, open_server

pytestmark = pytest.mark.process

ROLES = ("--prefill-engines", "1", "--decode-engines", "1")
SLOW = ("--dummy-step-seconds", "0.005", "--max-num-batched-tokens", "128")
"""A prompt takes a few steps, and an answer some hundred milliseconds."""
PARTS = ("engine-0", "engine-1", "kv-0", "kv-1")


LENGTH = 150
WHOLE = 144
"""Of these, those in full blocks."""
BLOCK_BYTES = 128
TRANSFERS = 'trillm:kv_transfers_total{engine="1",transport="shm"}'


def long_prompt(number: int) -> list[int]:
    return [50 + (number * 37 + place * place) % 400 for place in range(LENGTH)]


GRAMMAR = {"structured_outputs": {"regex": "([a-z]{1,6} ){10,30}"}}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "logprobs": 3},
    {"temperature": 1, "logprobs": 0},
    {"n": 2, "temperature": 1},
    {"stop": [" the", "ar"], "temperature": 1},
    GRAMMAR,
    {"frequency_penalty": 1, "presence_penalty": 0.5, "min_tokens": 20},
    {"max_tokens": 1},
]
BODIES = [
    {"prompt": long_prompt(number), "max_tokens": 60, "seed": number, "stream": number % 2 == 1}
    | KINDS[number % len(KINDS)]
    for number in range(16)
]


@pytest.fixture(scope="module")
def expected(checkpoint) -> list[dict[str, Any]]:
    """What one engine says."""

    async def ask_one() -> list[dict[str, Any]]:
        async with open_server(checkpoint) as server, answers(server, BODIES) as told:
            pass
        return comparable(told)

    return trio.run(ask_one)


def transfer(**extra: object) -> tuple[str, str]:
    return "--kv-transfer-config", json.dumps({"kv_port": 0, "kv_connector_extra_config": extra})


@asynccontextmanager
async def open_divided(checkpoint: Path, *flags: str) -> AsyncIterator[Server]:
    """Both engines serve, and both have their connectors."""
    async with open_server(checkpoint, *ROLES, *flags) as server:
        await until_whole(server)
        yield server


async def until_whole(server: Server) -> None:
    async with server.client() as http:

        async def are_all_there() -> bool:
            told = await actors(http)
            return all(name in told and told[name]["ready"] for name in PARTS)

        await until(are_all_there, 20)
    with trio.fail_after(5):
        for engine in ("engine-0", "engine-1"):
            while mapped_windows(server.children()[engine]) != 1:
                await trio.sleep(0.02)


def is_sound(server: Server) -> bool:
    return not any("Traceback" in line or " failed" in line for line in server.log)


async def test_answers_are_those_of_one_engine_and_each_does_its_part(checkpoint, expected):
    async with open_divided(checkpoint) as server:
        async with answers(server, BODIES) as told:
            pass
        assert comparable(told) == expected
        choices = sum(body.get("n", 1) for body in BODIES)
        goes_on = choices - sum(body["max_tokens"] == 1 for body in BODIES)
        tokens = sum(one["usage"]["completion_tokens"] for one in expected)
        counts: dict[str, float] = {}

        def is_all_told(now: dict[str, float]) -> bool:
            counts.update(now)
            has_loaded = now.get('vllm:external_prefix_cache_hits_total{engine="1"}', 0) > 0.8 * goes_on * WHOLE
            has_granted = now.get('trillm:kv_leases_granted_total{engine="0"}') == goes_on
            return is_at_rest(now, 2) and has_loaded and has_granted and now.get(TRANSFERS, 0) > 0

        await until_told(server, is_all_told)
        assert await each(server, "vllm:prompt_tokens_total") == [LENGTH * choices, 0]
        assert await each(server, "vllm:generation_tokens_total") == [choices, tokens - choices]
        assert counts[TRANSFERS] <= goes_on
        fetched = counts['trillm:kv_found_blocks_total{engine="1",tier="peer"}']
        assert counts['trillm:kv_transfer_bytes_total{engine="1",transport="shm"}'] == fetched * BLOCK_BYTES
        assert counts['trillm:kv_leases_expired_total{engine="0"}'] == 0
        assert not sum(value for name, value in counts.items() if name.startswith("trillm:kv_failures_total"))
        assert is_sound(server), server.log


async def until_back(server: Server, name: str, pid: int) -> None:
    with trio.fail_after(20):
        while server.children().get(name) in (None, pid):
            await trio.sleep(0.02)
    await until_whole(server)


async def embeddings(server: Server) -> list[Any]:
    """Of many texts: it takes a while."""
    texts = [f"{text} {number}" for number in range(20) for text in ("The harbour was quiet. " * 5, "Boats!")]
    async with server.client() as http:
        reply = await http.post("/v1/embeddings", json={"input": texts})
        assert reply.status_code == 200, reply.text
        return reply.json()["data"]


KILLED = [("engine-0",), ("engine-1",), ("kv-0",), ("kv-1",), ("engine-0", "kv-1"), ("engine-1", "kv-0")]


async def check_killed(server: Server, expected: list[dict[str, Any]]) -> None:
    """At whatever moment."""
    chance = random.Random(5)
    vectors = await embeddings(server)
    for victims in KILLED:
        found: list[list[Any]] = []

        async def embed(found: list[list[Any]] = found) -> None:
            found.append(await embeddings(server))

        async with answers(server, BODIES) as told, trio.open_nursery() as nursery:
            nursery.start_soon(embed)
            old = server.children()
            for victim in victims:
                await trio.sleep(chance.uniform(0, 0.4))
                os.kill(old[victim], signal.SIGKILL)
        assert comparable(told) == expected, victims
        assert found == [vectors], victims
        for victim in victims:
            await until_back(server, victim, old[victim])
    await until_told(server, partial(is_at_rest, num_engines=2))


async def check_stopped(checkpoint: Path, expected: list[dict[str, Any]], *victims: str) -> None:
    async with open_divided(checkpoint, *SLOW, *transfer(lease_seconds=2)) as server:
        old = server.children()
        async with answers(server, BODIES) as told:
            await trio.sleep(0.1)
            for victim in victims:
                os.kill(old[victim], signal.SIGSTOP)
        assert comparable(told) == expected
        for victim in victims:
            await until_back(server, victim, old[victim])
        async with answers(server, BODIES) as told:
            pass
        assert comparable(told) == expected
        await until_told(server, partial(is_at_rest, num_engines=2))
        assert is_sound(server), server.log


async def check_stopped_for_a_moment(checkpoint: Path, expected: list[dict[str, Any]]) -> None:
    chance = random.Random(6)
    async with open_divided(checkpoint, *SLOW, *transfer(lease_seconds=1)) as server:
        old = server.children()
        for victim in PARTS:
            async with answers(server, BODIES) as told:
                await trio.sleep(chance.uniform(0, 0.3))
                os.kill(old[victim], signal.SIGSTOP)
                await trio.sleep(1.2)  # leases are over meanwhile
                os.kill(old[victim], signal.SIGCONT)
            assert comparable(told) == expected, victim
        assert {name: server.children()[name] for name in PARTS} == {name: old[name] for name in PARTS}
        await until_told(server, partial(is_at_rest, num_engines=2))
        assert is_sound(server), server.log


async def leave(server: Server, number: int, seconds: float) -> None:
    """Ask for a long stream, and close the connection after that time."""
    body = json.dumps({"prompt": long_prompt(number % 40), "max_tokens": 200, "stream": True})
    fields = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    address = urlsplit(server.url)
    with trio.move_on_after(seconds):
        async with await trio.open_tcp_stream(address.hostname, address.port) as stream:
            await stream.send_all(f"POST /v1/completions HTTP/1.1\r\n{fields}{body}".encode())
            async for _ in stream:
                pass


async def check_left(server: Server) -> None:
    """By clients, at whatever moment: nothing is left."""
    chance = random.Random(7)

    async def all_leave(numbers: range, least_granted: int) -> None:
        """And their leases end."""
        async with trio.open_nursery() as nursery:
            for number in numbers:
                nursery.start_soon(leave, server, number, chance.uniform(0, 0.4))
                await trio.sleep(0.01)
        granted = 'trillm:kv_leases_granted_total{engine="0"}'
        await until_told(server, lambda told: is_at_rest(told, 2) and told[granted] > least_granted)

    def counts() -> dict[str, int]:
        """Of open descriptors, but for connections that connectors keep for the next time."""
        found = {name: descriptors(pid) for name, pid in server.children().items()}
        return {name: number - MAX_KEPT * name.startswith("kv") for name, number in found.items()}

    await all_leave(range(20), 3)
    baseline = {name: descriptors(pid) for name, pid in server.children().items()}
    await all_leave(range(20, 100), 20)
    with trio.move_on_after(5):
        while any(number > baseline[name] for name, number in counts().items()):
            await trio.sleep(0.02)
    assert not [name for name, number in counts().items() if number > baseline[name]], (baseline, counts())


async def check_left_and_killed(checkpoint: Path, expected: list[dict[str, Any]]) -> None:
    async with open_divided(checkpoint, *SLOW, *transfer(lease_seconds=1)) as server:
        await check_left(server)
        await check_killed(server, expected)
        assert is_sound(server), server.log


async def test_whoever_is_killed_stopped_or_left_at_whatever_moment_the_answers_are_the_same(checkpoint, expected):
    before = shared_memory()
    async with trio.open_nursery() as nursery:  # two wait ten seconds until somebody is taken for dead
        nursery.start_soon(check_stopped, checkpoint, expected, "engine-0", "kv-1")
        nursery.start_soon(check_stopped, checkpoint, expected, "engine-1", "kv-0")
        nursery.start_soon(check_stopped_for_a_moment, checkpoint, expected)
        nursery.start_soon(check_left_and_killed, checkpoint, expected)
    assert shared_memory() == before
