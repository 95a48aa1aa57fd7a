"""The failures that end the whole service, each done to a server under streams, and what the clients saw."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from scripts.chaos_run import processes
from scripts.chaos_run.answer import Told, first_difference
from scripts.chaos_run.bodies import Ask, asks
from scripts.chaos_run.exchange import BrokenAnswerError, open_exchange
from scripts.chaos_run.processes import Victim
from scripts.chaos_run.report import markdown
from scripts.chaos_run.run import record
from scripts.chaos_run.served import Recipe, Served, open_served

STREAMS = 8
TOKENS = 100
LEAVE_SECONDS = 1.0
"""In which every child leaves when the server is gone."""
END_SECONDS = 60.0
DEATHS = 4


@attrs.define
class Way:
    """One way to end, over all times that it was done."""

    name: str
    promise: str
    times: int = 0
    seen: dict[str, int] = attrs.field(factory=dict)
    """What streams ended with, and how many of them."""
    seconds: list[float] = attrs.field(factory=list)
    """From the first signal until every process had gone."""
    complaints: list[str] = attrs.field(factory=list)


@attrs.frozen
class Endings:
    ways: list[Way]

    @property
    def complaints(self) -> list[str]:
        return [f"{way.name}: {complaint}" for way in self.ways for complaint in way.complaints]


RIGHT, ERROR, BROKEN = "the right answer", "one terminal error", "a broken connection"


async def sigterm(served: Served) -> int:
    served.process.send_signal(signal.SIGTERM)
    return await served.wait()


async def kill_server(served: Served) -> int:
    served.process.kill()
    return await served.wait()


async def kill_engines(served: Served) -> int:
    """Each as soon as it is there."""
    killed: set[int] = set()
    while len(killed) < DEATHS and served.process.poll() is None:
        pid = processes.actors(served.pid).get("engine-0")
        if pid is not None and pid not in killed and (victim := Victim.of("engine-0", pid)):
            killed.add(pid)
            victim.send(signal.SIGKILL)
            victim.close()
        await trio.sleep(0.01)
    return await served.wait()


WAYS: dict[str, tuple[str, Callable[[Served], Awaitable[int]], int, set[str]]] = {
    "SIGTERM": ("running answers finish, exit status 0", sigterm, 0, {RIGHT}),
    "kill -9 of the server": ("connections break, no actor is left after 1 s", kill_server, -9, {BROKEN, RIGHT}),
    f"kill -9 of {DEATHS} engines in a row": ("one error each, exit status 1", kill_engines, 1, {ERROR, RIGHT}),
}
"""What is promised, how it is done, the exit status, and what clients may see."""


async def end(recipe: Recipe, times: int) -> Endings:
    """Raises ServedFailedError, BrokenAnswerError and OSError if a server does not get as far as its end."""
    streamed = [ask for ask in asks(TOKENS, long_prompt_lines=8) if ask.stream]
    expected = await record(recipe, streamed)
    ways = []
    for name, (promise, deed, status, allowed) in WAYS.items():
        way = Way(name, promise)
        ways.append(way)
        for _ in range(times):
            await one(recipe, streamed, expected, way, deed, status, allowed)
    return Endings(ways)


async def one(
    recipe: Recipe,
    asked: list[Ask],
    expected: dict[str, dict[str, Any]],
    way: Way,
    deed: Callable[[Served], Awaitable[int]],
    status: int,
    allowed: set[str],
) -> None:
    async with open_served(recipe) as served:
        streams = [Stream(asked[(way.times * STREAMS + index) % len(asked)]) for index in range(STREAMS)]
        with trio.move_on_after(END_SECONDS) as limit:
            async with trio.open_nursery() as nursery:
                for index, stream in enumerate(streams):
                    nursery.start_soon(stream.read, served.port, index, expected)
                for stream in streams:
                    await stream.begun.wait()
                pids = list(processes.actors(served.pid).values())
                began = trio.current_time()
                found = await deed(served)
                deadline = trio.current_time() + LEAVE_SECONDS
                while any(map(processes.is_alive, pids)) and trio.current_time() < deadline:
                    await trio.sleep(0.01)
                way.seconds.append(trio.current_time() - began)
                if any(map(processes.is_alive, pids)):
                    way.complaints.append(f"actors are left {LEAVE_SECONDS:.0f} s after the server")
                if found != status:
                    way.complaints.append(f"its exit status is {found}, not {status}")
        if limit.cancelled_caught:
            way.complaints.append(f"not over within {END_SECONDS:.0f} s")
    way.times += 1
    way.seen = dict(Counter(way.seen) + Counter(stream.end for stream in streams))
    way.complaints += [f"{s.ask.name} ended with {s.end}" for s in streams if s.end not in allowed]


@attrs.define
class Stream:
    """One client, and how its stream ended."""

    ask: Ask
    end: str = "nothing"
    begun: trio.Event = attrs.field(factory=trio.Event)

    async def read(self, port: int, number: int, expected: dict[str, dict[str, Any]]) -> None:
        told = Told()
        try:
            async with open_exchange(port) as exchange:
                await exchange.send("POST", self.ask.path, self.ask.numbered(number))
                while not exchange.ended:
                    told.feed(await exchange.receive())
                    if told.num_events > 1:
                        self.begun.set()
        except (BrokenAnswerError, OSError):
            self.end = BROKEN
            return
        finally:
            self.begun.set()
        if told.error is not None and told.num_done == 1:
            self.end = ERROR
        else:
            self.end = told.complaint() or first_difference(expected[self.ask.name], told.comparable()) or RIGHT


def table(result: Endings) -> str:
    rows = [
        [
            *(way.name, str(way.times)),
            "; ".join(f"{number} × {what}" for what, number in way.seen.items()),
            f"{max(way.seconds, default=0.0):.1f} s",
            way.promise,
        ]
        for way in result.ways
    ]
    return markdown(["done", "times", "streams ended with", "all processes gone after at most", "promised"], rows)
