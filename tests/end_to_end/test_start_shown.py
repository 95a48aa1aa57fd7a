"""What a real start shows: on a terminal, in a log of JSON, and to journald."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.helpers.on_terminal import open_on_terminal
from tests.helpers.ports import lasting_ports
from tests.helpers.server import open_process

pytestmark = pytest.mark.process

HEADERS = {"X-Request-Id": "mine"}
ASKED = {"prompt": "a", "max_tokens": 2}


def command(checkpoint: Path, *flags: str) -> list[str]:
    serve = [sys.executable, "-m", "app.cli", "serve", str(checkpoint), "--load-format", "dummy", "--port", "0"]
    return [*serve, *flags]


async def test_a_terminal_shows_the_start_then_a_summary_then_the_log(checkpoint: Path) -> None:
    async with open_on_terminal(*command(checkpoint)) as shown:
        with trio.fail_after(30):
            await shown.until("trillm chat --base-url")
            while not shown.has_cursor:
                await trio.sleep(0.02)
            lines = shown.lines()
            shown.press_ctrl_c()
            assert await shown.wait() == 0

        assert re.fullmatch(rf"✓ {checkpoint.name} is ready after [\d.]+ s: start [\d.]+(, \w+ [\d.]+)*", lines[0])
        assert [line.split()[0] for line in lines[1:]] == ["Model", "API", "Console", "Try"]
        assert "\x1b[?25l" in shown.text, "it was drawn"
        *_, draining, stopped = shown.lines()
        assert draining.endswith("INFO trillm: draining: 0 requests may finish within 30 s")
        assert stopped.endswith("INFO trillm: stopped")


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TRILLM_LOG_FORMAT": "json"}], ids=["dumb", "json"])
async def test_a_terminal_that_cannot_or_shall_not_be_drawn_on_gets_plain_lines(
    checkpoint: Path, environment: dict[str, str]
) -> None:
    async with open_on_terminal(*command(checkpoint), **environment) as shown:
        with trio.fail_after(30):
            await shown.until("ready in")
        assert "\x1b" not in shown.text


async def test_ctrl_c_while_it_starts_ends_it_at_once_and_gives_the_terminal_back(
    checkpoint: Path, tmp_path: Path
) -> None:
    # The engine's ranks lie on a host that never comes.
    key = tmp_path / "key"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    hosts = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(*lasting_ports(1)))
    async with open_on_terminal(*command(checkpoint, "-tp", "2", *hosts, "--node-key-file", str(key))) as shown:
        with trio.fail_after(30):
            await shown.until("waiting for")
            pressed_at = trio.current_time()
            shown.press_ctrl_c()
            assert await shown.wait() == 0
        assert trio.current_time() - pressed_at < 3
        assert shown.has_cursor
        assert "Traceback" not in shown.text
        assert shown.lines()[-1].endswith("INFO trillm: stopped")


async def test_a_start_that_fails_leaves_one_sentence(checkpoint: Path, tmp_path: Path) -> None:
    serve = [sys.executable, "-m", "app.cli", "serve", str(checkpoint), "--port", "0"]  # there are no weights
    async with open_on_terminal(*serve) as shown:
        with trio.fail_after(30):
            assert await shown.wait() == 1
        assert shown.has_cursor
        [line] = shown.lines()
        assert line.startswith("trillm: ")
        assert "no weights" in line


async def test_a_log_of_json_is_json_in_every_line_of_every_process(checkpoint: Path) -> None:
    flags = ("--log-format", "json", "--log-level", "debug", "--api-server-count", "2", "--uds")
    with_socket = [*command(checkpoint, *flags)]
    path = f"/tmp/trillm-test-{os.getpid()}.sock"
    async with open_process([*with_socket, path]) as server:
        server.url, server.uds = "http://localhost", Path(path)
        with trio.fail_after(30):
            await server.until_said(re.compile("ready in"))
        async with server.client() as http:
            answer = (await http.post("/v1/completions", json=ASKED, headers=HEADERS)).json()
        with trio.fail_after(10):
            await server.until_said(re.compile("trillm.access"))
        told = [json.loads(line) for line in server.log]
        assert {"app", "api-0", "api-1"} <= {line["actor"] for line in told}
        [access] = [line for line in told if line["logger"] == "trillm.access"]
        assert access["actor"] in ("api-0", "api-1")
        assert (access["request_id"], access["answer_id"], access["status"]) == ("mine", answer["id"], 200)
        assert len(access["engine_requests"]) == 1
        [ready] = [line for line in told if line["message"].startswith("ready in")]
        assert ready["seconds"] == pytest.approx(sum(ready["phases"].values()), abs=0.01)


async def test_journald_gets_levels_and_no_times(checkpoint: Path, tmp_path: Path) -> None:
    log = tmp_path / "journal"
    with log.open("wb") as stream:
        status = os.fstat(stream.fileno())
        named = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        process = subprocess.Popen(command(checkpoint), stderr=stream, env=os.environ | named, cwd="/")
    try:
        with trio.fail_after(30):
            while b"ready in" not in log.read_bytes():
                assert process.poll() is None
                await trio.sleep(0.05)
    finally:
        process.terminate()
        process.wait()
    lines = log.read_text().splitlines()
    assert all(line.startswith("<6>trillm: ") for line in lines), lines
    assert re.match(r"<6>trillm: starting \S+, listening on http://", lines[0])
    assert len([line for line in lines if " took " not in line]) == 5, lines  # that is told of a slow machine


async def test_the_phases_of_the_start_are_metrics(checkpoint: Path) -> None:
    async with open_process(command(checkpoint)) as server:
        with trio.fail_after(30):
            server.url = (await server.until_said(re.compile(r"listening on (\S+)")))[1]
            await server.until_said(re.compile("ready in"))
        async with server.client() as http:
            page = (await http.get("/metrics")).text
        assert re.search(r'^trillm:startup_seconds{model_name="[^"]+",phase="start"} [\d.]+$', page, re.MULTILINE)
        assert not any("\x1b" in line for line in server.log)
