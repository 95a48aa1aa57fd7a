"""Stored and background responses, over the deaths of what made them: real processes, one file."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.helpers.server import READY, open_process, open_server

pytestmark = pytest.mark.process

PATH = "/v1/responses"
SLOW = ("--dummy-step-seconds", "0.03")
LENGTH = {"max_output_tokens": 60, "ignore_eos": True, "temperature": 0}
LONG = {"input": "Tell me of boats.", "background": True} | LENGTH


def flags(tmp_path: Path) -> tuple[str, ...]:
    return ("--responses-store-path", str(tmp_path / "responses.sqlite3"))


async def created(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await http.post(PATH, json=LONG | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def found(http: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    answer = await http.get(f"{PATH}/{response_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def events(http: httpx.AsyncClient, response_id: str, after: int | None = None) -> list[dict[str, Any]]:
    query = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
    answer = await http.get(f"{PATH}/{response_id}", params=query)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]


async def until_under_way(http: httpx.AsyncClient, response_id: str) -> None:
    """Until its first word is being told."""
    while True:
        told = await found(http, response_id)
        assert told["status"] in ("queued", "in_progress")
        if told["output"]:
            return
        await trio.sleep(0.02)


async def test_a_killed_server_s_responses_are_there_after_a_restart_and_what_was_under_way_has_failed(
    checkpoint: Path, tmp_path: Path
) -> None:
    async with open_server(checkpoint, *SLOW, *flags(tmp_path)) as server, server.client() as http:
        whole = await created(http, background=False, max_output_tokens=4)
        lost = await created(http)
        await until_under_way(http, lost["id"])
        await trio.sleep(0.2)  # some of it is on disk by then, or this test shows less
        server.signal(signal.SIGKILL)
        assert await server.wait() == -signal.SIGKILL
    async with open_server(checkpoint, *flags(tmp_path)) as server, server.client() as http:
        assert await found(http, whole["id"]) == whole
        failed = await found(http, lost["id"])
        assert failed["status"] == "failed"
        assert failed["error"]["code"] == "server_error"
        assert failed["output"][-1]["status"] == "incomplete"
        told = await events(http, lost["id"])
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        assert told[-1]["type"] == "response.failed"
        assert told[-1]["response"] == failed
        goes_on = {"background": False, "max_output_tokens": 4, "previous_response_id": whole["id"]}
        assert (await created(http, **goes_on))["usage"]["input_tokens"] > whole["usage"]["input_tokens"]
        answer = await http.post(PATH, json=LONG | {"previous_response_id": lost["id"]})
        assert answer.status_code == 400


async def test_a_killed_engine_leaves_a_background_response_as_it_would_have_been(
    checkpoint: Path, tmp_path: Path
) -> None:
    async with open_server(checkpoint, *SLOW, *flags(tmp_path)) as server, server.client() as http:
        undisturbed = await created(http, background=False)
        response = await created(http)
        await until_under_way(http, response["id"])
        await server.kill("engine-0")
        told = await events(http, response["id"], after=2)
        assert told[-1]["type"] == "response.incomplete"
        after = await found(http, response["id"])
        assert after["output"][0]["content"] == undisturbed["output"][0]["content"]
        assert after["usage"]["output_tokens"] == 60


@pytest.mark.parametrize(("seconds", "status"), [("30", "incomplete"), ("0.2", "failed")])
async def test_sigterm_gives_background_responses_the_time_that_streams_have(
    checkpoint: Path, tmp_path: Path, seconds: str, status: str
) -> None:
    waits = ("--shutdown-timeout", seconds)
    async with open_server(checkpoint, *SLOW, *waits, *flags(tmp_path)) as server, server.client() as http:
        response = await created(http)
        await until_under_way(http, response["id"])
        server.signal(signal.SIGTERM)
        assert await server.wait() == 0
    async with open_server(checkpoint, *flags(tmp_path)) as server, server.client() as http:
        after = await found(http, response["id"])
        assert after["status"] == status
        if status == "failed":
            assert after["error"]["message"] == "The server is shutting down"
            assert after["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize(("seconds", "status"), [("30", "incomplete"), ("0.2", "failed")])
async def test_the_hypercorn_command_gives_them_that_time_too(
    checkpoint: Path, tmp_path: Path, seconds: str, status: str
) -> None:
    command = [sys.executable, "-m", "hypercorn", "--worker-class", "trio", "--bind", "127.0.0.1:0", "app:create_app()"]
    settings = {
        "TRILLM_MODEL": str(checkpoint),
        "TRILLM_LOAD_FORMAT": "dummy",
        "TRILLM_DUMMY_STEP_SECONDS": "0.03",
        "TRILLM_SHUTDOWN_TIMEOUT": seconds,
        "TRILLM_RESPONSES_STORE_PATH": str(tmp_path / "responses.sqlite3"),
    }
    async with open_process(command, **settings) as server:
        server.url = (await server.until_said(re.compile(r"Running on (http://\S+)")))[1]
        await server.until_said(READY)
        async with server.client() as http:
            response = await created(http)
            await until_under_way(http, response["id"])
        server.signal(signal.SIGTERM)
        assert await server.wait() == 0
        await server.until_silent()
    assert not any("Traceback" in line for line in server.log)
    async with open_server(checkpoint, *flags(tmp_path)) as server, server.client() as http:
        after = await found(http, response["id"])
        assert after["status"] == status
        assert after["usage"]["output_tokens"] > 0
        if status == "failed":
            assert after["error"]["message"] == "The server is shutting down"


async def test_servers_that_share_a_file_follow_and_cancel_each_other_s(checkpoint: Path, tmp_path: Path) -> None:
    async with (
        open_server(checkpoint, "--dummy-step-seconds", "0.05", *flags(tmp_path)) as one,
        open_server(checkpoint, *flags(tmp_path)) as other,
        one.client() as there,
        other.client() as here,
    ):
        response = await created(there, max_output_tokens=400)
        await until_under_way(there, response["id"])
        assert (await found(here, response["id"]))["status"] == "in_progress"
        assert (await here.post(f"{PATH}/{response['id']}/cancel")).json()["status"] == "cancelled"
        assert (await found(there, response["id"]))["status"] == "cancelled"
        assert await one.num_requests() == 0
        assert await events(here, response["id"]) == await events(there, response["id"])
