"""Carries a plan out on a running server, and remembers what was really done, and when."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence

import attrs
import trio

from scripts.chaos_run import processes
from scripts.chaos_run.bodies import Ask
from scripts.chaos_run.client import Client
from scripts.chaos_run.garbage import http_garbage, send_http_garbage, send_socket_garbage, sockets
from scripts.chaos_run.plan import Injection
from scripts.chaos_run.processes import Victim
from scripts.chaos_run.served import Served

SUCCESSOR_SECONDS = 10.0
NUM_RESETS = 8


@attrs.define
class Injected:
    """An injection as it happened. Times are of trio's clock."""

    injection: Injection
    at: float
    until: float
    """When the victim was let go on; the same moment, of what is done at once."""
    victims: list[str]
    """Who was there to be injured; an injection without any did not happen."""


@attrs.define
class Injector:
    """`run` it in a nursery of its own beside the clients."""

    served: Served
    random: random.Random
    client: Client
    asks: Sequence[Ask]
    done: list[Injected] = attrs.field(factory=list)
    complaints: list[str] = attrs.field(factory=list)

    async def run(self, plan: Sequence[Injection]) -> None:
        """Ends after the last of them has been let go."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for injection in plan:
                await trio.sleep_until(began + injection.at)
                self.served.check_alive()
                injected = Injected(injection, trio.current_time(), trio.current_time(), [])
                self.done.append(injected)
                nursery.start_soon(self._inject, injected)

    async def _inject(self, injected: Injected) -> None:
        match injected.injection.kind.deed:
            case "kill":
                self._kill(injected)
            case "kill twice":
                self._kill(injected)
                await self._kill_successor(injected)
            case "stop":
                await self._stop(injected)
            case "socket garbage":
                await self._garbage_to_sockets(injected)
            case "http garbage":
                await self._garbage_as_http(injected)
            case "resets":
                await self._resets(injected)
        injected.until = trio.current_time()

    def _victims(self, injected: Injected) -> list[Victim]:
        there = {"server": self.served.pid} | processes.actors(self.served.pid)
        found = []
        for wanted in injected.injection.kind.victims:
            names = sorted(name for name in there if name.startswith(wanted))
            if names and (victim := Victim.of(name := self.random.choice(names), there[name])):
                found.append(victim)
        return found

    def _kill(self, injected: Injected) -> None:
        for victim in self._victims(injected):
            if victim.send(signal.SIGKILL):
                injected.victims.append(victim.name)
            victim.close()

    async def _kill_successor(self, injected: Injected) -> None:
        """The next one as soon as it is there, which is long before it is ready."""
        with trio.move_on_after(SUCCESSOR_SECONDS):
            for name in list(injected.victims):
                while (pid := processes.actors(self.served.pid).get(name)) is None:
                    await trio.sleep(0.01)
                await trio.sleep(0.3 * self.random.random())
                if victim := Victim.of(f"{name}, its successor", pid):
                    if victim.send(signal.SIGKILL):
                        injected.victims.append(victim.name)
                    victim.close()

    async def _stop(self, injected: Injected) -> None:
        victims = self._victims(injected)
        try:
            injected.victims += [victim.name for victim in victims if victim.send(signal.SIGSTOP)]
            await trio.sleep(injected.injection.seconds if injected.victims else 0)
        finally:
            for victim in victims:
                victim.send(signal.SIGCONT)
                victim.close()

    async def _garbage_to_sockets(self, injected: Injected) -> None:
        for path in sockets(self.served.runtime):
            if await trio.to_thread.run_sync(send_socket_garbage, path, self.random):
                injected.victims.append(path.name.split(".")[0] + path.suffix)

    async def _garbage_as_http(self, injected: Injected) -> None:
        injected.victims.append("server")

        async def send(data: bytes) -> None:
            try:
                if wrong := await send_http_garbage(self.served.port, data):
                    self.complaints.append(wrong)
            except OSError as error:
                self.complaints.append(f"garbage could not be sent: {error}")

        async with trio.open_nursery() as nursery:
            for data in http_garbage(self.random):
                nursery.start_soon(send, data)

    async def _resets(self, injected: Injected) -> None:
        injected.victims.append("server")

        async def reset() -> None:
            ask = self.random.choice(self.asks)
            outcome = await self.client.ask(ask, self.random.randrange(10**9), "resets")
            if outcome.verdict not in ("left", "equal"):  # a short answer may have ended before
                self.complaints.append(f"a client that was to reset: {outcome.verdict} {outcome.detail}")

        async with trio.open_nursery() as nursery:
            for _ in range(NUM_RESETS):
                nursery.start_soon(reset)
