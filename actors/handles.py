"""What the app holds of the actors: send to an engine, send to the output handler, hear what happens, and where their
sockets may lie. Nothing else of this package is the app's to import."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, NoReturn, Protocol, TypeVar, final

import attrs
import msgspec
import trio

from actors.parent_death import die_with_parent
from actors.runtime_directory import runtime_places
from protocol.api import PageAsked, PeerPage, PeerPages, ServerIs, SharedIs
from protocol.curve import CurveKeys
from protocol.ids import EngineIndex, Epoch
from protocol.messages import AppInput, EngineInput, OutputInput
from protocol.net_address import netloc
from protocol.sampling import Grammar, GrammarSource
from protocol.spec import ApiSpec, EngineFacts, EngineSpec, KvSpec, LoadFormat, RankSpec

if TYPE_CHECKING:
    from actors.supervisor import Supervisor

__all__ = [
    "ActorState",
    "ApiHouse",
    "ApiServersView",
    "ApiTemplate",
    "EngineLost",
    "EventOutlet",
    "FollowingSpec",
    "HostsSpec",
    "House",
    "HouseEvent",
    "HouseFailed",
    "HouseSpec",
    "OutputLost",
    "ServeApi",
    "ServerNews",
    "die_with_parent",
    "follow_host",
    "open_actors",
    "open_api_servers",
    "run_api_process",
    "runtime_places",
]


@attrs.frozen
class ApiTemplate:
    """Several API servers on the same listening sockets."""

    num_servers: int
    listeners: tuple[int, ...]
    """Descriptors."""
    serving: bytes
    """For the app's own part of them."""


@attrs.frozen
class HostsSpec:
    """The hosts that the ranks of each engine lie on, of which this one leads."""

    num_hosts: int
    host: str
    """Name or address of this one, by which the others reach it."""
    port: int
    """Where it listens; the ranks of engine N meet at the port N + 1 above it."""
    curve: CurveKeys
    model: str
    """Digest of the model's configuration, which is the same everywhere."""

    @property
    def endpoint(self) -> str:
        return netloc(self.host, self.port)

    def meeting(self, index: EngineIndex, epoch: Epoch) -> str:
        return f"tcp://{netloc(self.host, self.port + 1 + index)}/{epoch}"


@attrs.frozen
class FollowingSpec:
    """For a host that keeps ranks for another one, which leads."""

    number: int
    """Of this host, from 1."""
    num_hosts: int
    host: str
    port: int
    """Where the leading one listens."""
    leading_key: bytes
    curve: CurveKeys
    model: str
    checkpoint: str
    """This host's own copy."""
    cache_directory: str
    threads: int | None

    @property
    def endpoint(self) -> str:
        return netloc(self.host, self.port)

    def local(self, spec: RankSpec) -> RankSpec:
        """With what is this host's own affair."""
        engine = msgspec.structs.replace(
            spec.engine,
            checkpoint=self.checkpoint,
            cache_directory=self.cache_directory,
            threads=self.threads,
            weights_seconds=None,
        )
        return msgspec.structs.replace(spec, engine=engine)


@attrs.frozen
class HouseSpec:
    """How many of which actors. `engine` is a template: index, epoch and addresses are filled in per incarnation."""

    engine: EngineSpec
    num_engines: int = 1
    wants_standby: bool = False
    """Whether a process is to stand by for the next engine's start, if that takes long."""
    api: ApiTemplate | None = None
    """None: there is one API server, and it is in this process."""
    hosts: HostsSpec | None = None
    """None: everything is on this host."""
    kv: KvSpec | None = None
    """A template for the KV connectors of the engines, which share its memory and disk; None: there are none."""

    @property
    def has_standby(self) -> bool:
        """What takes long is to import torch, which engines without weights do not. Not for an engine with ranks: the
        others would have to import it all the same."""
        is_slow = self.engine.load_format is not LoadFormat.DUMMY
        return self.wants_standby and is_slow and self.engine.parallel.world == 1

    @property
    def shares_weights(self) -> bool:
        """Whether there is a weights actor: not for engines without weights, nor for those that have them on a GPU."""
        return self.engine.load_format is not LoadFormat.DUMMY and self.engine.device != "cuda"


@attrs.frozen
class EngineLost:
    """An engine's incarnation is gone, and with it every request that it ran."""

    engine_index: EngineIndex
    epoch: Epoch
    reason: str
    from_outside: bool = False
    """Somebody ended it who had nothing to do with what it ran."""


@attrs.frozen
class OutputLost:
    """The output handler is gone; what it had not said is lost."""

    reason: str


@attrs.frozen
class HouseFailed:
    """An actor cannot be kept alive: the service is over."""

    reason: str


HouseEvent = AppInput | EngineLost | OutputLost | HouseFailed


Event = TypeVar("Event")


@final
class EventOutlet(Generic[Event]):
    """An outbox for events that calls its listener: a task and a channel in between would cost more, for each step of
    an engine, than all that is done with what it says. Keeps what comes before there is a listener."""

    def __init__(self) -> None:
        self._kept: list[Event] = []
        self._take: Callable[[Event], None] = self._kept.append

    def send_nowait(self, value: Event) -> None:
        self._take(value)

    def listen(self, take: Callable[[Event], None]) -> None:
        self._take = take
        for event in self._kept:
            take(event)
        self._kept.clear()


@attrs.frozen
class ActorState:
    """One actor as the supervisor sees it."""

    name: str
    epoch: Epoch
    pid: int | None
    ready: bool
    phase: str
    """As its last heartbeat said; "down" between two incarnations."""
    phase_seconds: float
    """Age of the phase, as the last heartbeat said it."""
    heartbeat_age: float
    """Seconds since the last heartbeat; 0.0 for a standby, which has none."""
    progress: float
    """Of the phase, 0 to 1; 0 where it is not known."""
    restarts: int
    last_end: str | None
    """How the previous incarnation ended."""
    is_needed: bool = True
    """False if requests are served as well while it is not ready."""
    engine_index: EngineIndex | None = None
    """Which engine it is; None for all others."""


class House(Protocol):
    """The running actors. `open_actors` gives the real one."""

    def listen(self, take: Callable[[HouseEvent], None]) -> None:
        """From now on `take` is given everything that the app has to know, in order, in the task that learnt it; first
        what has happened already. For one listener."""

    def engine_facts(self, index: EngineIndex, epoch: Epoch) -> EngineFacts | None:
        """What this incarnation of the engine learnt; None if it is not the one that is up."""

    def send_to_engine(self, index: EngineIndex, message: EngineInput) -> bool:
        """Whether it was sent: False if the message's epoch is not the one that is up."""

    def send_to_output(self, message: OutputInput) -> bool:
        """Whether it was sent: False while the output handler is down."""

    async def check_grammar(self, source: GrammarSource) -> Grammar:
        """Built once in a process of its own. Raises GrammarError or UnavailableError."""

    def states(self) -> list[ActorState]:
        """Every actor, in a fixed order."""


ServerNews = SharedIs | PageAsked | PeerPages
"""What API servers let each other know: something that all share has changed; say what you count; so much did your
predecessor count."""


class ApiHouse(House, Protocol):
    """The running actors, for one of several API servers in a process of its own."""

    def follow(self, take: Callable[[ServerNews], None]) -> None:
        """From now on `take` is given what the others let this one know, in order; first what has come already."""

    def stops(self) -> AsyncIterator[int]:
        """The signals by which all are to stop, as the supervisor gets them."""

    def tell(self, standing: ServerIs) -> None:
        """How this server is."""

    def tell_page(self, page: bytes, call_id: int = 0) -> None:
        """What this server counts: asked, or now and then."""

    async def share(self, key: str, value: bytes | None) -> None:
        """Let all servers know, this one too; returns when those that are up do. Raises UnavailableError."""

    def share_soon(self, key: str, value: bytes | None) -> None:
        """As `share`, before what is shared later, without waiting."""

    async def pages(self) -> list[PeerPage]:
        """What the others count. Raises UnavailableError."""

    def give_up(self, reason: str) -> None:
        """The service as a whole is to end."""


ServeApi = Callable[[ApiSpec, ApiHouse, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Serves until it is told to stop. The last argument is to be called once it is about to take connections."""


class ApiServersView(Protocol):
    """All API servers, where there are several: what the main process has to do with them."""

    failure: str | None
    """Why the service cannot go on."""
    failed: trio.Event
    admitted: trio.Event
    """All of them have taken requests, at the same time: a connection may come to any of them."""

    def actors(self) -> list[ActorState]:
        """Every actor, in a fixed order."""

    def standings(self) -> list[ServerIs | None]:
        """What each of them last said of itself; None for those that are down."""

    def stop(self, signal: int) -> None:
        """Tell all: the first time to drain, after that to end at once. None is started again."""

    def share(self, key: str, value: bytes) -> None:
        """Let all of them know, and those that are started later, as they let each other (app/remote_peers.py)."""

    async def wait_gone(self) -> None:
        """Until all have ended, after `stop` or a failure."""


@asynccontextmanager
async def open_actors(spec: HouseSpec) -> AsyncIterator[House]:
    """Start the actors and keep them alive; on leaving, stop them all and leave nothing behind.

    Yields at once: what is ready when comes as events. Errors of single actors never come out of here; when one
    cannot be kept alive there is a HouseFailed event.
    """
    async with _open_supervisor(spec) as supervisor:
        yield supervisor


@asynccontextmanager
async def open_api_servers(spec: HouseSpec) -> AsyncIterator[ApiServersView]:
    """As `open_actors`, with the API servers among the actors. `spec.api` says which."""
    async with _open_supervisor(spec) as supervisor:
        assert supervisor.servers is not None, "spec.api is None"
        yield supervisor.servers


@asynccontextmanager
async def _open_supervisor(spec: HouseSpec) -> AsyncIterator[Supervisor]:
    from actors.runtime_directory import open_runtime_directory
    from actors.supervisor import Supervisor
    from protocol.links import open_links

    curve = None if spec.hosts is None else spec.hosts.curve
    with open_runtime_directory() as directory, open_links(curve) as links:
        supervisor = Supervisor(spec, directory, links)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            try:
                yield supervisor
            finally:
                # Each incarnation's exit stops its process, shielded and with deadlines.
                nursery.cancel_scope.cancel()


async def follow_host(spec: FollowingSpec) -> None:
    """Keep ranks as the leading host wants, until cancelled. Raises StartError when that refuses this host."""
    from actors.hosts.main import follow

    await follow(spec)


def run_api_process(serve: ServeApi) -> NoReturn:
    """An API server's process, from start to end: see app/api_process.py."""
    from actors.api.main import run_api_process as run

    run(serve)
