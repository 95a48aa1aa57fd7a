"""Several engines behind one door, as processes: whichever dies, the others have its streams before it is back."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.helpers.server import LISTENING, READY, Server, open_process, open_server
from tests.helpers.tiny_checkpoints import make_checkpoint

pytestmark = pytest.mark.process

TWO = ("--data-parallel-size", "2")
SLOW = ("--dummy-step-seconds", "0.01")
GREEDY = [{"prompt": f"The quick brown fox {n}", "max_tokens": 120, "temperature": 0} for n in range(8)]
SEEDED = [{"prompt": f"once {n}", "max_tokens": 120, "temperature": 1, "seed": n, "logprobs": 1} for n in range(8)]
BODIES = [body | {"ignore_eos": True} for body in (*GREEDY, *SEEDED)]


@asynccontextmanager
async def open_two(checkpoint: Path, *flags: str) -> AsyncIterator[Server]:
    """Both serve."""
    async with open_server(checkpoint, *TWO, *flags) as server:
        await until_both_serve(server)
        yield server


async def until_both_serve(server: Server) -> None:
    async with server.client() as http:
        while "late" in (await http.get("/ready")).json():
            await trio.sleep(0.02)


async def each(server: Server, name: str) -> list[float]:
    """What /metrics tells of each engine."""
    async with server.client() as http:
        text = (await http.get("/metrics")).text
    found = dict(re.findall(rf'^{name}{{engine="(\d)"[^}}]*}} (\S+)$', text, re.MULTILINE))
    return [float(found[index]) for index in sorted(found)]


async def read(server: Server, body: dict, texts: list[str], index: int) -> None:
    """The stream's text, if it has one end and no error."""
    ends = []
    async with server.client() as http, http.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            if line and line != "data: [DONE]":
                [choice] = json.loads(line.removeprefix("data: "))["choices"]
                texts[index] += choice["text"]
                ends += [choice["finish_reason"]] * (choice["finish_reason"] is not None)
    assert len(ends) == 1


@asynccontextmanager
async def streams(server: Server, bodies: list[dict]) -> AsyncIterator[list[str]]:
    """All of them are under way inside, and have been read to their ends afterwards."""
    texts = [""] * len(bodies)
    async with trio.open_nursery() as nursery:
        for index, body in enumerate(bodies):
            nursery.start_soon(read, server, body, texts, index)
        while not all(texts):
            await trio.sleep(0.01)
        yield texts


async def test_whichever_engine_is_killed_the_other_has_its_streams_before_it_is_back(checkpoint):
    async with open_two(checkpoint, *SLOW) as server, server.client() as http:
        async with streams(server, BODIES) as expected:
            assert min(await each(server, "vllm:num_requests_running")) >= 6
        for index in (1, 0):
            async with streams(server, BODIES) as texts:
                os.kill(server.children()[f"engine-{index}"], signal.SIGKILL)
                while f"engine-{index}: " not in (told := (await http.get("/ready")).json()).get("late", ""):
                    await trio.sleep(0.005)
                assert told["ready"]
                assert [actor["ready"] for actor in told["actors"]] == [index == 1, index == 0, True]
                assert f"engine-{index}: " in (await http.get("/health")).text
                reply = await http.post("/v1/completions", json=BODIES[0] | {"max_tokens": 1})
                assert reply.status_code == 200
            assert texts == expected
            await until_both_serve(server)
            assert (await http.get("/health")).text == ""
            # What it says when it is back: that nobody has waited for it.
            await server.until_said(re.compile(f"engine-{index} serves$"))
        assert not any("failed" in line or "Traceback" in line for line in server.log)


async def test_one_that_dies_too_often_is_let_alone_as_long_as_another_one_serves(checkpoint):
    async with open_two(checkpoint, *SLOW) as server, server.client() as http:
        for _ in range(4):
            await until_both_serve(server)
            os.kill(server.children()["engine-1"], signal.SIGKILL)
            while "late" not in (await http.get("/ready")).json():
                await trio.sleep(0.005)
        await server.until_said(re.compile(r"engine-1 died 4 times within 60 s: .*the others go on"))
        async with streams(server, BODIES):
            pass
        assert (await http.get("/ready")).json()["late"].startswith("engine-1: down")


async def test_a_pause_holds_also_the_engine_that_was_down_meanwhile(checkpoint):
    async with open_two(checkpoint, *SLOW) as server, server.client() as http:
        os.kill(server.children()["engine-1"], signal.SIGKILL)
        while "late" not in (await http.get("/ready")).json():
            await trio.sleep(0.005)
        assert (await http.post("/pause")).json()["is_paused"]
        await until_both_serve(server)
        async with trio.open_nursery() as nursery:
            texts = [""] * 4
            for index, body in enumerate(BODIES[:4]):
                nursery.start_soon(read, server, body, texts, index)
            while sum(await each(server, "vllm:num_requests_waiting")) < 4:
                await trio.sleep(0.01)
            assert await each(server, "vllm:num_requests_waiting") == [2, 2]
            assert (await http.post("/resume")).status_code == 200
        assert all(texts)


async def test_conversations_find_in_their_engine_what_was_computed_of_them(checkpoint):
    async with open_two(checkpoint) as server, server.client() as http:
        conversations = [[5 + number % 50, 60 + number] * 60 for number in range(32)]

        async def talk(tokens: list[int]) -> None:
            for turn in range(4):
                body = {"prompt": tokens, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
                assert (await http.post("/v1/completions", json=body)).status_code == 200
                tokens += [70 + turn] * 20

        async with trio.open_nursery() as nursery:
            for tokens in conversations:
                nursery.start_soon(talk, tokens)
        queries, hits = (
            await each(server, "vllm:prefix_cache_queries_total"),
            await each(server, "vllm:prefix_cache_hits_total"),
        )
        predicted = await each(server, "trillm:routed_prefix_tokens_total")
        best = 32 * (112 + 128 + 144 + 0)  # what one engine would find: whole blocks of 120, 140 and 160 tokens
        assert sum(queries) == 32 * (120 + 140 + 160 + 180)
        assert min(queries) > sum(queries) / 4, "both have work"
        assert sum(hits) > 0.9 * best
        assert sum(predicted) == pytest.approx(sum(hits), rel=0.1)


@asynccontextmanager
async def open_tiny(directory: Path, *flags: str) -> AsyncIterator[Server]:
    """A tiny checkpoint, with its weights."""
    small = ("--device", "cpu", "--dtype", "float32", "--threads", "1", "--num-gpu-blocks-override", "100")
    command = [sys.executable, "-m", "app.cli", "serve", str(directory), "--port", "0", "--no-engine-standby"]
    async with open_process([*command, *small, *flags]) as server:
        server.url = (await server.until_said(LISTENING))[1]
        await server.until_said(READY)
        yield server


async def test_two_engines_say_what_one_says_also_when_one_of_them_is_killed(tmp_path):
    make_checkpoint(tmp_path)
    found: dict[str, list[str]] = {}

    async def ask_one() -> None:
        async with open_tiny(tmp_path) as server, streams(server, BODIES) as found["one"]:
            pass

    async def ask_two() -> None:
        async with open_tiny(tmp_path, *TWO) as server:
            await until_both_serve(server)
            assert set(server.children()) == {"engine-0", "engine-1", "output-0", "weights-0"}
            async with streams(server, BODIES) as found["two"]:
                os.kill(server.children()["engine-0"], signal.SIGKILL)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_one)
        nursery.start_soon(ask_two)
    assert found["one"] == found["two"]
    assert all(found["one"])
