"""Whoever dies: no client hangs, none is told a lie, nothing is left behind, and service resumes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.helpers.processes import cpu_seconds, wait_until_gone
from tests.helpers.server import LISTENING, READY, Server, open_process, open_server

pytestmark = pytest.mark.process

LONG = {"prompt": "once", "max_tokens": 500, "min_tokens": 500, "ignore_eos": True}
SLOW = ("--dummy-step-seconds", "0.01")
"""With which a LONG stream takes five seconds."""


async def read_stream(server: Server, events: list[str], started: trio.Event) -> None:
    async with server.client() as http, http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            if line:
                events.append(line)
            if len(events) > 2:
                started.set()


@asynccontextmanager
async def running_stream(server: Server) -> AsyncIterator[list[str]]:
    """A stream that has begun; on leaving it is read to its end. Yields its events as they come."""
    events: list[str] = []
    started = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_stream, server, events, started)
        await started.wait()
        yield events


def error_before_done(events: list[str]) -> str:
    """The message of the error frame with which a stream ended."""
    assert events[-1] == "data: [DONE]"
    return json.loads(events[-2].removeprefix("data: "))["error"]["message"]


BODIES = [
    {"prompt": "once", "max_tokens": 150, "ignore_eos": True, "temperature": 0},
    {"prompt": "upon", "max_tokens": 150, "ignore_eos": True, "temperature": 1, "seed": 5, "logprobs": 2},
    {"prompt": "a time", "max_tokens": 150, "temperature": 1, "seed": 6, "stop": [" the"], "frequency_penalty": 1},
    {"prompt": "there", "max_tokens": 120, "structured_outputs": {"regex": "([a-z]{1,6} ){20,60}"}, "seed": 7},
    {"prompt": "was", "max_tokens": 100, "ignore_eos": True, "n": 2, "seed": 8},
]


async def answer(server: Server, body: dict, stream: bool) -> list:
    """Choices and usage, without what differs between any two answers."""
    async with server.client() as http:
        if not stream:
            reply = (await http.post("/v1/completions", json=body)).json()
            return [[(c["text"], c["finish_reason"], c["logprobs"]) for c in reply["choices"]], reply["usage"]]
        told = body | {"stream": True, "stream_options": {"include_usage": True}}
        texts, ends, usage = {}, {}, None
        async with http.stream("POST", "/v1/completions", json=told) as reply:
            async for line in reply.aiter_lines():
                if not line or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                usage = chunk["usage"] or usage
                for choice in chunk["choices"]:
                    texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
                    ends[choice["index"]] = choice["finish_reason"]
        return [sorted(texts.items()), sorted(ends.items()), usage]


@pytest.mark.parametrize("victim", ["engine-0", "output-0"])
async def test_whatever_is_killed_the_answers_go_on_and_are_what_they_would_have_been(checkpoint, victim):
    async with open_server(checkpoint, *SLOW) as server:
        asked = [(body, stream) for body in BODIES for stream in (True, False)]
        expected: list = [None] * len(asked)
        got: list = [None] * len(asked)

        async def ask(index: int, answers: list) -> None:
            answers[index] = await answer(server, *asked[index])

        async with trio.open_nursery() as nursery:
            for index in range(len(asked)):
                nursery.start_soon(ask, index, expected)
        async with trio.open_nursery() as nursery:
            for index in range(len(asked)):
                nursery.start_soon(ask, index, got)
            for _ in range(2):
                while await server.num_requests() < len(asked) and not any(got):  # on a slow machine some end early
                    await trio.sleep(0.02)
                await trio.sleep(0.2)
                await server.kill(victim)
                await server.until_ready()

        assert got == expected


async def test_a_new_request_while_the_engine_is_down_is_refused_at_once_and_health_stays(checkpoint):
    async with open_server(checkpoint) as server, server.client() as http:
        os.kill(server.children()["engine-0"], signal.SIGKILL)
        while (await http.get("/ready")).status_code == 200:
            pass  # until the death is noticed; a request that comes before that goes on in the next engine
        reply = await http.post("/v1/completions", json={"prompt": "once", "max_tokens": 1})
        assert reply.status_code == 503
        assert float(reply.headers["retry-after"]) >= 1
        assert (await http.get("/health")).status_code == 200


async def check_a_frozen_actor(checkpoint: Path, victim: str) -> None:
    async with open_server(checkpoint, *SLOW) as server, server.client() as http:
        async with running_stream(server) as events:
            os.kill(server.children()[victim], signal.SIGSTOP)
            while (reply := await http.get("/ready")).status_code == 200:
                await trio.sleep(0.1)
            assert f"{victim} has not been heard of" in reply.json()["error"]["message"]
        assert '"finish_reason":"length"' in events[-2]
        assert events[-1] == "data: [DONE]"
        assert (await http.post("/v1/completions", json={"prompt": "once", "max_tokens": 5})).status_code == 200


async def test_a_frozen_actor_is_not_waited_for(checkpoint):
    async with trio.open_nursery() as nursery:  # each waits ten seconds until it is taken for dead
        for victim in ("engine-0", "output-0"):
            nursery.start_soon(check_a_frozen_actor, checkpoint, victim)


async def test_a_grammar_that_ends_its_checker_is_a_400_and_touches_nobody(checkpoint):
    async with open_server(checkpoint, *SLOW) as server, server.client() as http:
        chain = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(3000)} | {"a3000": {}}
        schema = {"$defs": chain, "$ref": "#/$defs/a0"}
        body = {"prompt": "once", "max_tokens": 3, "structured_outputs": {"json": schema}}
        async with running_stream(server) as events:
            reply = await http.post("/v1/completions", json=body)
            assert reply.status_code == 400, reply.text
            body["structured_outputs"] = {"choice": ["boat", "river"]}
            reply = await http.post("/v1/completions", json=body | {"max_tokens": 30})
            assert reply.json()["choices"][0]["text"] in ("boat", "river")
        assert '"finish_reason":"length"' in events[-2]


async def test_four_deaths_in_a_row_end_the_service_and_its_streams_with_a_status_and_a_reason(checkpoint):
    async with open_server(checkpoint, *SLOW) as server, running_stream(server) as events:
        for _ in range(4):
            with trio.move_on_after(10):
                await server.until_ready()
            await server.kill("engine-0")
        assert await server.wait() == 1
        assert any("engine-0 died 4 times within 60 s" in line for line in server.log)
    assert "died" in error_before_done(events) or "die under this request" in error_before_done(events)


async def test_kill_9_of_the_server_leaves_no_actor(checkpoint):
    async with open_server(checkpoint) as server:
        actors = server.children()
        assert set(actors) == {"engine-0", "output-0"}
        server.signal(signal.SIGKILL)
        with trio.fail_after(2):
            await wait_until_gone(*actors.values())


async def test_kill_9_of_the_server_while_it_loads_leaves_no_actor(checkpoint):
    command = [sys.executable, "-m", "app.cli", "serve", str(checkpoint), "--load-format", "dummy", "--port", "0"]
    async with open_process(command) as server:
        await server.until_said(LISTENING)
        while len(actors := server.children()) < 2:
            await trio.sleep(0.001)
        server.signal(signal.SIGKILL)
        with trio.fail_after(3):
            await wait_until_gone(*actors.values())


async def test_sigterm_lets_a_running_stream_finish_and_exits_with_0(checkpoint):
    async with open_server(checkpoint, *SLOW) as server:
        async with running_stream(server) as events:
            server.signal(signal.SIGTERM)
        assert events[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in events[-2]
        assert await server.wait() == 0


async def test_after_the_drain_deadline_a_stream_ends_with_an_error_frame(checkpoint):
    async with open_server(checkpoint, *SLOW, "--shutdown-timeout", "0.3") as server:
        async with running_stream(server) as events:
            server.signal(signal.SIGTERM)
        assert "shutting down" in error_before_done(events)
        assert await server.wait() == 0


async def test_a_second_signal_ends_the_streams_at_once(checkpoint):
    async with open_server(checkpoint, *SLOW) as server:
        async with running_stream(server) as events:
            server.signal(signal.SIGTERM)
            await server.until_said(re.compile("draining"))
            server.signal(signal.SIGTERM)
        assert "shutting down" in error_before_done(events)
        assert await server.wait() == 0


async def test_a_model_that_cannot_be_loaded_is_one_sentence_and_no_process(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    command = [sys.executable, "-m", "app.cli", "serve", str(tmp_path), "--port", "0"]
    async with open_process(command) as server:
        assert await server.wait() == 1
        await trio.sleep(0.1)
        assert len([line for line in server.log if line.startswith("trillm: ")]) == 1
        assert "Traceback" not in "".join(server.log)


async def test_missing_weights_are_noticed_before_any_process_is_started(checkpoint):
    command = [sys.executable, "-m", "app.cli", "serve", str(checkpoint), "--port", "0"]
    async with open_process(command) as server:  # the directory has no weights, and the dummy was not asked for
        assert await server.wait() == 1
        assert "safetensors" in server.log[-1]
        assert not any("listening" in line for line in server.log)


async def test_an_engine_that_cannot_start_ends_the_service_with_its_reason(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"architectures": ["Nonesuch"], "model_type": "nonesuch"})
    )
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    async with open_process([sys.executable, "-m", "app.cli", "serve", str(tmp_path), "--port", "0"]) as server:
        assert await server.wait() == 1
        assert any("engine-0 could not start" in line and "onesuch" in line for line in server.log), server.log
        assert "Traceback" not in "".join(server.log)


async def test_an_idle_server_uses_next_to_no_cpu(checkpoint):
    async with open_server(checkpoint) as server:
        await trio.sleep(0.5)
        pids = [server.pid, *server.children().values()]
        before = sum(map(cpu_seconds, pids))
        await trio.sleep(3)
        assert sum(map(cpu_seconds, pids)) - before < 0.15


async def test_the_hypercorn_command_serves_the_same_application(checkpoint):
    flags = ["--worker-class", "trio", "--bind", "127.0.0.1:0", "app:create_app()"]
    async with open_process(
        [sys.executable, "-m", "hypercorn", *flags], TRILLM_MODEL=str(checkpoint), TRILLM_LOAD_FORMAT="dummy"
    ) as server:
        server.url = (await server.until_said(re.compile(r"Running on (http://\S+)")))[1]
        await server.until_said(READY)
        async with server.client() as http:
            reply = await http.post("/v1/completions", json={"prompt": "once", "max_tokens": 5})
            assert reply.status_code == 200
        async with running_stream(server):
            server.signal(signal.SIGTERM)
        assert await server.wait() == 0
