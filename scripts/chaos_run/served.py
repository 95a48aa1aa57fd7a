"""`trillm serve` under test: started on a free port with a runtime directory of its own, asked for what it tells of
itself, and stopped for certain."""

from __future__ import annotations

import contextlib
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
import trio

from scripts.chaos_run import processes
from scripts.chaos_run.exchange import BrokenAnswerError, as_json, ask

LISTENING = re.compile(r"listening on http://[^:\s]+:(\d+)")
METRIC = re.compile(r"^(?:vllm|trillm):(\w+){([^}]*)} (\S+)$", re.MULTILINE)
IN_USE = re.compile(r'state="(exported|importing|quarantined)"')
START_SECONDS = 180.0
STOP_SECONDS = 60.0


class ServedFailedError(Exception):
    """The server did not start, or left, or did not stop."""


@attrs.frozen
class Recipe:
    """How to start it."""

    model: str | None = None
    real: bool = False
    """Compute with the model's weights; else the dummy model over its tokeniser."""
    step_seconds: float = 0.02
    """Of the dummy model."""
    arguments: Sequence[str] = ()

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "app.cli", "serve", *([self.model] if self.model else []), "--port", "0"]
        if not self.real:
            command += ["--load-format", "dummy", "--dummy-step-seconds", str(self.step_seconds)]
        return [*command, *self.arguments]


@attrs.define
class Served:
    """A running server."""

    process: subprocess.Popen[bytes]
    log: Path
    runtime: Path
    """Where it makes the directory of its sockets."""
    port: int = 0
    ready_seconds: float = 0.0

    @property
    def pid(self) -> int:
        return self.process.pid

    def check_alive(self) -> None:
        """Raises ServedFailedError with the end of its log."""
        if self.process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise ServedFailedError(f"the server ended with status {self.process.returncode}:\n{tail}")

    async def is_ready(self) -> bool:
        try:
            status, _ = await ask(self.port, "GET", "/ready")
        except (BrokenAnswerError, OSError):
            return False
        return status == 200

    async def until_ready(self, seconds: float = START_SECONDS) -> float:
        """Seconds until /ready answers 200. Raises ServedFailedError."""
        began = trio.current_time()
        while not await self.is_ready():
            self.check_alive()
            if trio.current_time() - began > seconds:
                raise ServedFailedError(f"not ready within {seconds:.0f} s")
            await trio.sleep(0.01)
        return trio.current_time() - began

    async def until_all_ready(self, seconds: float = START_SECONDS) -> None:
        """Also those actors that requests do not wait for. Raises ServedFailedError."""
        with trio.move_on_after(seconds):
            while not await self._are_all_ready():
                self.check_alive()
                await trio.sleep(0.1)
            return
        raise ServedFailedError(f"some actors are not ready within {seconds:.0f} s")

    async def _are_all_ready(self) -> bool:
        try:
            status, body = await ask(self.port, "GET", "/ready")
        except (BrokenAnswerError, OSError):
            return False
        return status == 200 and all(actor["ready"] for actor in as_json(body)["actors"])

    async def until_listening(self) -> None:
        while not (found := LISTENING.search(self.log.read_text(errors="replace"))):
            self.check_alive()
            await trio.sleep(0.02)
        self.port = int(found[1])

    async def gauges(self) -> dict[str, float]:
        """What /metrics tells, by name: the most, where there are several of it, as of each engine. Raises
        BrokenAnswerError or OSError."""
        found: dict[str, float] = {}
        for name, _, value in await self._told():
            found[name] = max(value, found.get(name, value))
        return found

    async def frames_in_use(self) -> float:
        """Of KV connectors: what others read, or what is being written by others. Raises as `gauges` does."""
        told = await self._told()
        return sum(value for name, labels, value in told if name == "kv_frames" and IN_USE.search(labels))

    async def _told(self) -> list[tuple[str, str, float]]:
        _, text = await ask(self.port, "GET", "/metrics")
        lines = METRIC.findall(text.decode())
        return [(name, labels, float(value)) for name, labels, value in lines]

    async def wait(self) -> int:
        while (code := self.process.poll()) is None:
            await trio.sleep(0.02)
        return code

    async def stop(self) -> int:
        """SIGTERM, and its exit status. Raises ServedFailedError if it stays."""
        self.process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_SECONDS):
            return await self.wait()
        raise ServedFailedError(f"it did not leave within {STOP_SECONDS:.0f} s of SIGTERM")


@asynccontextmanager
async def open_served(recipe: Recipe) -> AsyncIterator[Served]:
    """A server that is ready. Raises ServedFailedError."""
    async with open_unready(recipe) as served:
        began = trio.current_time()
        await served.until_listening()
        await served.until_ready()
        served.ready_seconds = trio.current_time() - began
        yield served


@asynccontextmanager
async def open_unready(recipe: Recipe) -> AsyncIterator[Served]:
    """One that was just started. On leaving it is killed, if it still runs, and its actors with it."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        runtime, log = Path(directory), Path(directory) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                recipe.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"XDG_RUNTIME_DIR": directory},
            )
        served = Served(process, log, runtime)
        try:
            yield served
        finally:
            left = list(processes.actors(served.pid).values())
            process.kill()
            process.wait()
            for pid in left:  # they leave when their parent is gone, unless something stopped them
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
