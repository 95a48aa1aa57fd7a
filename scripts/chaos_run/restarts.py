"""From kill -9 of the engine to the next token of a stream that it was working on, and to /ready."""

from __future__ import annotations

import signal
from statistics import median

import attrs
import trio

from scripts.chaos_run import processes
from scripts.chaos_run.answer import Told
from scripts.chaos_run.exchange import open_exchange
from scripts.chaos_run.plan import MAX_DEATHS
from scripts.chaos_run.processes import Victim
from scripts.chaos_run.report import markdown
from scripts.chaos_run.served import Recipe, Served, ServedFailedError, open_served

STREAM = {"prompt": "Once upon a time", "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "stream": True}
STREAM |= {"stream_options": {"include_usage": True}}
UNDER_WAY = 10
"""Events of the stream that have come before the engine is killed."""
RESTART_SECONDS = 120.0


@attrs.frozen
class Restart:
    """Seconds from the kill."""

    to_token: float
    to_ready: float


@attrs.define
class Restarts:
    restarts: list[Restart] = attrs.field(factory=list)
    complaints: list[str] = attrs.field(factory=list)


@attrs.define
class Watched:
    """A stream's events as they come."""

    told: Told = attrs.field(factory=Told)
    news: trio.Event = attrs.field(factory=trio.Event)

    async def read(self, port: int) -> None:
        async with open_exchange(port) as exchange:
            await exchange.send("POST", "/v1/completions", STREAM)
            while not exchange.ended:
                self.told.feed(await exchange.receive())
                self.news.set()
                self.news = trio.Event()

    async def until(self, events: int) -> None:
        while self.told.num_events < events and not self.told.num_done:
            await self.news.wait()


async def measure(recipe: Recipe, times: int) -> Restarts:
    """As many on one server as its policy bears, then on another. Raises ServedFailedError."""
    found = Restarts()
    while len(found.restarts) < times:
        async with open_served(recipe) as served:
            for _ in range(min(MAX_DEATHS, times - len(found.restarts))):
                with trio.move_on_after(RESTART_SECONDS) as limit:
                    found.restarts.append(await one(served, found.complaints))
                if limit.cancelled_caught:
                    raise ServedFailedError(f"no token within {RESTART_SECONDS:.0f} s of the engine's death")
    return found


async def one(served: Served, complaints: list[str]) -> Restart:
    watched = Watched()
    await served.until_all_ready()  # a standby too, if the server has one
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.read, served.port)
        await watched.until(UNDER_WAY)
        pid = processes.actors(served.pid)["engine-0"]
        if (victim := Victim.of("engine-0", pid)) is None:
            raise ServedFailedError("the engine was gone before it was killed")
        victim.send(signal.SIGKILL)
        victim.close()
        killed = trio.current_time()
        # What had left the engine before it died may still be on its way; its successor's tokens come later.
        while processes.actors(served.pid).get("engine-0") in (None, pid):
            await trio.sleep(0.005)
        seen = watched.told.num_events
        ready = 0.0

        async def until_ready() -> None:
            nonlocal ready
            await served.until_ready(RESTART_SECONDS)
            ready = trio.current_time() - killed

        nursery.start_soon(until_ready)
        await watched.until(seen + 1)
        token = trio.current_time() - killed
        if watched.told.num_done:
            complaints.append(f"the stream ended under it: {watched.told.error}")
        while not ready:
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    return Restart(token, ready)


def table(result: Restarts) -> str:
    columns = {
        "the stream's next token": [one.to_token for one in result.restarts],
        "/ready": [one.to_ready for one in result.restarts],
    }
    rows = [
        [name, str(len(values)), f"{median(values):.2f} s", f"{min(values):.2f} s", f"{max(values):.2f} s"]
        for name, values in columns.items()
    ]
    return markdown(["from kill -9 of the engine to", "times", "median", "shortest", "longest"], rows)
