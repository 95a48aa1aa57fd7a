"""A real `trillm serve` (or hypercorn) on a free loopback port, for tests from one end to the other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from app.checkpoints.default_model import FILE
from app.settings import default_cache_directory
from tests.helpers.processes import children, is_gone

READY = re.compile(r"ready in ([0-9.]+) s: ")
LISTENING = re.compile(r"listening on (http://\S+)")


@attrs.define
class Server:
    """A running server, and what it said on stderr so far."""

    process: subprocess.Popen[bytes]
    log: list[str] = attrs.field(factory=list)
    url: str = ""
    uds: Path | None = None
    """The Unix socket that it listens on, if it does."""
    patience: float = 30.0
    """Seconds that a client waits for anything to come."""
    news: trio.Event = attrs.field(factory=trio.Event)
    silent: trio.Event = attrs.field(factory=trio.Event)

    @property
    def pid(self) -> int:
        return self.process.pid

    def children(self) -> dict[str, int]:
        return children(self.pid)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def wait(self) -> int:
        while self.process.poll() is None:
            await trio.sleep(0.02)
        return self.process.returncode

    async def hear(self) -> None:
        """Collect what it says, until it closes stderr."""
        stream = trio.lowlevel.FdStream(os.dup(self.process.stderr.fileno()))
        rest = ""
        async with stream:
            async for data in stream:
                *lines, rest = (rest + data.decode()).split("\n")
                self.log += lines
                self.news.set()
                self.news = trio.Event()
        self.silent.set()

    async def until_silent(self) -> None:
        """Until everything it said has been heard, after it has ended."""
        await self.silent.wait()

    async def until_said(self, pattern: re.Pattern[str]) -> re.Match[str]:
        while True:
            for line in self.log:
                if match := pattern.search(line):
                    return match
            if self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}: {self.log}")
            with trio.move_on_after(0.2):
                await self.news.wait()

    def client(self, **options: object) -> httpx.AsyncClient:
        if self.uds is not None:
            options["transport"] = httpx.AsyncHTTPTransport(uds=str(self.uds))
        return httpx.AsyncClient(base_url=self.url, timeout=self.patience, **options)

    async def gauge(self, name: str) -> float:
        """A value that /metrics tells, by its name without the prefix."""
        async with self.client() as http:
            text = (await http.get("/metrics")).text
        return float(re.search(rf"^vllm:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)[1])

    async def num_requests(self) -> float:
        """Running or waiting in the engine."""
        return await self.gauge("num_requests_running") + await self.gauge("num_requests_waiting")

    async def kill(self, name: str) -> None:
        """kill -9 an actor, and wait until another one has taken its place (or the server has ended)."""
        while (pid := self.children().get(name)) is None:
            await trio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        while self.process.poll() is None and self.children().get(name) in (None, pid):
            await trio.sleep(0.01)

    async def until_ready(self) -> float:
        """Seconds until /ready answers 200 (again)."""
        began = trio.current_time()
        async with self.client() as http:
            while (await http.get("/ready")).status_code != 200:
                await trio.sleep(0.02)
        return trio.current_time() - began


@asynccontextmanager
async def open_process(
    arguments: list[str], *, descriptors: Sequence[int] = (), where: str | Path = "/", **environment: str
) -> AsyncIterator[Server]:
    """Run a command and collect its stderr; afterwards it is stopped, and none of its children may be left.
    `descriptors`: what it inherits besides stdin, stdout and stderr, under the same numbers; `where`: it is
    started."""
    directory = tempfile.TemporaryDirectory(prefix="trillm-test-")
    kept = {"TRILLM_RESPONSES_STORE_PATH": f"{directory.name}/responses.sqlite3"}  # not among the user's own
    process = subprocess.Popen(
        arguments, stderr=subprocess.PIPE, env=os.environ | kept | environment, cwd=where, pass_fds=descriptors
    )
    server = Server(process)
    known: dict[str, int] = {}
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.hear)
            yield server
            if process.poll() is None:
                known = server.children()
                process.send_signal(signal.SIGINT)
                with trio.move_on_after(20):
                    await server.wait()
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        directory.cleanup()
    assert all(is_gone(pid) for pid in known.values()), f"left behind: {known}"


@asynccontextmanager
async def open_server(checkpoint: Path, *flags: str, **environment: str) -> AsyncIterator[Server]:
    """`trillm serve` with the dummy runner, ready. No answer is longer or shorter by chance."""
    command = [sys.executable, "-m", "app.cli", "serve", str(checkpoint), "--load-format", "dummy", "--port", "0"]
    async with open_process([*command, *flags], **{"TRILLM_SEED": "0"} | environment) as server:
        server.url = (await server.until_said(LISTENING))[1]
        await server.until_said(READY)
        yield server


@asynccontextmanager
async def open_default_model(*flags: str) -> AsyncIterator[Server]:
    """`trillm serve` with the default model, ready; the test is skipped if nothing has fetched that yet."""
    if not (default_cache_directory() / "default" / FILE).is_file():
        pytest.skip("the default model is not in the cache: any start of the server fetches it")
    async with open_process([sys.executable, "-m", "app.cli", "serve", "--port", "0", *flags]) as server:
        server.url = (await server.until_said(LISTENING))[1]
        await server.until_said(READY)
        yield server
