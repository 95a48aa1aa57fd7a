"""The operator's routes with real processes: memory that sleeps is the system's again, and nobody's answer changes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import trio

from tests.helpers.processes import resident_bytes
from tests.helpers.server import Server, open_default_model, open_server

pytestmark = pytest.mark.process

MEBIBYTE = 2**20
SLOW = ("--dummy-step-seconds", "0.01")
STORY = "Once upon a time there was a miller who had three sons, a mill, a donkey and a cat. " * 20
"""Some 450 tokens, whose keys and values are 10 MiB in the default model."""


async def complete(server: Server, **body: object) -> dict:
    async with server.client() as http:
        reply = await http.post("/v1/completions", json={"temperature": 0} | body)
        assert reply.status_code == 200, reply.text
        return reply.json()


async def post(server: Server, path: str, status: int = 200) -> dict:
    async with server.client() as http:
        reply = await http.post(path)
        assert reply.status_code == status, reply.text
        return reply.json()


async def get(server: Server, path: str) -> dict:
    async with server.client() as http:
        return (await http.get(path)).json()


@pytest.mark.model
async def test_memory_that_sleeps_is_given_back_and_answers_stay_the_same():
    async with open_default_model() as server:
        engine = server.children()["engine-0"]
        expected = [await complete(server, prompt=prompt, max_tokens=8) for prompt in (STORY, "The sky is")]
        awake = resident_bytes(engine)

        assert (await post(server, "/sleep?level=1&mode=keep"))["asleep"] == ["kv_cache"]
        without_kv = resident_bytes(engine)
        assert (await post(server, "/sleep?level=2"))["asleep"] == ["kv_cache", "weights"]
        without_weights = resident_bytes(engine)
        assert await server.gauge("num_requests_running") == 0
        assert (await post(server, "/wake_up"))["status"] == "running"
        again = [await complete(server, prompt=prompt, max_tokens=8) for prompt in (STORY, "The sky is")]
        woken = resident_bytes(engine)

        told = {"awake": awake, "level 1": without_kv, "level 2": without_weights, "woken": woken}
        print({name: f"{size / MEBIBYTE:.0f} MiB" for name, size in told.items()})
        assert [answer["choices"] for answer in again] == [answer["choices"] for answer in expected]
        assert awake - without_kv > 8 * MEBIBYTE
        assert without_kv - without_weights > 60 * MEBIBYTE
        assert abs(woken - awake) < 20 * MEBIBYTE


async def test_a_profile_lies_where_the_answer_says(checkpoint, tmp_path):
    async with open_server(checkpoint, "--profiler-dir", str(tmp_path / "profiles")) as server:
        await post(server, "/stop_profile", 409)
        await post(server, "/start_profile")
        await post(server, "/start_profile", 409)
        await complete(server, prompt="The sky is", max_tokens=4, ignore_eos=True)
        [profile] = (await post(server, "/stop_profile"))["profiles"]
        assert profile["num_steps"] == 4
        assert Path(profile["path"]).parent == tmp_path / "profiles"
        events = json.loads(await trio.Path(profile["path"]).read_bytes())["traceEvents"]
        assert [event["name"] for event in events] == [f"step {number}, 1 rows" for number in range(1, 5)]


@pytest.mark.parametrize(
    ("hold", "release"), [("/sleep?level=2&mode=keep", "/wake_up"), ("/pause?mode=keep", "/resume")]
)
async def test_an_engine_killed_while_it_is_held_comes_back_held_with_its_requests(checkpoint, hold, release):
    bodies = [{"prompt": prompt, "max_tokens": 40, "ignore_eos": True} for prompt in ("once", "upon")]
    async with open_server(checkpoint, *SLOW) as server:
        expected = [(await complete(server, **body))["choices"] for body in bodies]
        answers: dict[int, list] = {}

        async def ask(index: int) -> None:
            answers[index] = (await complete(server, **bodies[index]))["choices"]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, 0)
            while await server.gauge("num_requests_running") == 0:
                await trio.sleep(0.01)
            await post(server, hold)
            nursery.start_soon(ask, 1)
            while await server.num_requests() < 2:
                await trio.sleep(0.01)
            for _ in range(2):
                await server.kill("engine-0")
                await server.until_ready()
            question, key = ("/is_paused", "is_paused") if "pause" in hold else ("/is_sleeping", "is_sleeping")
            assert (await get(server, question))[key]
            assert answers == {}
            assert (await post(server, release))["is_sleeping"] is False
        assert [answers[0], answers[1]] == expected


async def test_who_is_aborted_by_a_sleep_is_told_why_and_may_try_again(checkpoint):
    async with open_server(checkpoint, *SLOW) as server, server.client() as http:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                reply = await http.post(
                    "/v1/completions", json={"prompt": "once", "max_tokens": 1500, "min_tokens": 1500}
                )
                assert reply.status_code == 503
                assert "put to sleep" in reply.json()["error"]["message"]
                assert reply.headers["retry-after"]

            nursery.start_soon(ask)
            while await server.gauge("num_requests_running") == 0:
                await trio.sleep(0.01)
            await post(server, "/sleep?level=1")
        assert (await get(server, "/is_sleeping")) == {"is_sleeping": True}
        await post(server, "/wake_up")
        await complete(server, prompt="once", max_tokens=2)


async def test_it_stops_within_its_time_also_while_requests_wait_in_a_sleeping_engine(checkpoint):
    async with open_server(checkpoint, *SLOW, "--shutdown-timeout", "0.5") as server, server.client() as http:
        await post(server, "/sleep?level=1")
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                assert (await http.post("/v1/completions", json={"prompt": "once"})).status_code == 503

            nursery.start_soon(ask)
            while await server.num_requests() == 0:
                await trio.sleep(0.01)
            os.kill(server.pid, signal.SIGTERM)
        assert await server.wait() == 0
