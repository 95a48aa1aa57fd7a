"""The API servers of one listening socket, kept alive by the supervisor, and what they let each other know through it.

Engines come and go for all of them alike. Each hears the others' changes of what they share (adapters, say) in one
order, and may ask what the others count; who does not answer in time counts with its last word. One that dies takes its
own connections and requests with it, and nothing else; it is started again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import assert_never, final

import attrs
import trio

from actors.api.server import ApiServer, Premises
from actors.api.standings import told
from actors.handles import ActorState, ApiTemplate, EngineLost, HouseEvent, HouseFailed
from actors.rest import REST_SECONDS, unless_others_serve
from protocol.api import (
    ApiInput,
    CannotGoOn,
    EngineCame,
    EngineWent,
    GrammarAsked,
    GrammarLeft,
    HouseInput,
    HouseOver,
    PageAsked,
    PagesAsked,
    PageTold,
    PeerPage,
    PeerPages,
    ServerIs,
    Share,
    SharedIs,
    ShareKnown,
    ShareTaken,
    StopServing,
)
from protocol.ids import ClientIndex, EngineIndex
from protocol.spec import EngineFacts, EngineSpec

ANSWER_SECONDS = 1.0
"""How long others are waited for. One that is up answers within milliseconds, unless it is held up."""
STATES_SECONDS = 0.5
MAX_SHARED = 8192
"""Keys; more than there can be adapters and engines."""

logger = logging.getLogger("trillm.supervisor")


@attrs.define(eq=False)
class Answers:
    """Those that are still missing."""

    missing: set[ClientIndex]
    complete: trio.Event = attrs.field(factory=trio.Event)

    def come(self, index: ClientIndex) -> None:
        self.missing.discard(index)
        if not self.missing:
            self.complete.set()


@final
class ApiServers:
    """Fulfils actors.handles.ApiServersView."""

    def __init__(self, template: ApiTemplate, premises: Premises) -> None:
        self._premises = premises
        self._servers = [
            ApiServer(ClientIndex(index), template, premises, self._begin, self._take_in)
            for index in range(template.num_servers)
        ]
        self._engines: dict[EngineIndex, tuple[EngineSpec, EngineFacts]] = {}
        self._shared: dict[str, bytes] = {}
        self._numbers = count(1)
        self._answers: dict[int, Answers] = {}
        """To shares and to polls, by number."""
        self._nursery: trio.Nursery | None = None
        self._signals: list[int] = []
        self._are_to_stop = trio.Event()
        self.failure: str | None = None
        self.failed = trio.Event()
        self.admitted = trio.Event()

    # ------------------------------------------------------------------ for the main process

    def actors(self) -> list[ActorState]:
        return self._premises.states()

    def standings(self) -> list[ServerIs | None]:
        return [server.standing for server in self._servers]

    def stop(self, signal: int) -> None:
        self._signals.append(signal)
        self._start_none_again()
        self._tell_all(StopServing(signal))

    def share(self, key: str, value: bytes) -> None:
        self._shared[key] = value
        self._tell_all(SharedIs(0, key, value))

    def _start_none_again(self) -> None:
        for server in self._servers:
            server.is_to_stop = True
        self._are_to_stop.set()

    async def wait_gone(self) -> None:
        for server in self._servers:
            await server.gone.wait()

    # ------------------------------------------------------------------ for the supervisor

    def states(self) -> list[ActorState]:
        """None of them is needed: whom an API server needs itself, it knows."""
        records = [record for server in self._servers for record in (server.output, server.record)]
        return [attrs.evolve(record.state(), is_needed=False) for record in records]

    def engine_came(self, spec: EngineSpec, facts: EngineFacts) -> None:
        self._engines[spec.engine_index] = (spec, facts)
        self._tell_states()
        for server in self._servers:
            server.tell(came(spec, facts, server.index))

    def take(self, event: HouseEvent) -> None:
        """What happens to engines and to the house; the rest goes to an API server's own output handler."""
        match event:
            case EngineLost(engine_index=index, epoch=epoch, reason=reason, from_outside=from_outside):
                self._engines.pop(index, None)
                self._tell_states()
                self._tell_all(EngineWent(index, epoch, reason, from_outside))
            case HouseFailed(reason=reason):
                self.failure = reason
                self._start_none_again()
                self._tell_all(HouseOver(reason))
                self.failed.set()
            case _:
                raise AssertionError(f"nobody sends this to the supervisor: {event}")

    async def run(self) -> None:
        """Keep them alive until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for server in self._servers:
                nursery.start_soon(self._keep, server)
            while True:
                self._tell_states()
                await trio.sleep(STATES_SECONDS)

    async def _keep(self, server: ApiServer) -> None:
        """As long as others serve, one that keeps dying is let alone for a while and tried again."""
        give_up = unless_others_serve(self._premises.give_up, server.record, self._is_any_up)
        while True:
            await self._premises.keep_alive(server.record, server.incarnation, give_up)
            with trio.move_on_after(REST_SECONDS):
                await self._are_to_stop.wait()

    # ------------------------------------------------------------------ telling

    def _begin(self, server: ApiServer) -> None:
        """A new incarnation: all that the others know."""
        server.tell(told(self.actors()))
        for key, value in self._shared.items():
            server.tell(SharedIs(0, key, value))
        if server.past is not None:
            server.tell(PeerPages(0, [PeerPage(server.past, is_live=False)]))
        for spec, facts in self._engines.values():
            server.tell(came(spec, facts, server.index))
        server.tell_of_output()
        if self.failure is not None:
            server.tell(HouseOver(self.failure))
        for signal in self._signals:
            server.tell(StopServing(signal))

    def _tell_all(self, message: ApiInput) -> None:
        for server in self._servers:
            server.tell(message)

    def _tell_states(self) -> None:
        if self._is_any_up():
            self._tell_all(told(self.actors()))

    def _is_any_up(self) -> bool:
        return any(server.is_up for server in self._servers)

    # ------------------------------------------------------------------ what they say

    def _take_in(self, server: ApiServer, message: HouseInput) -> None:
        match message:
            case ServerIs():
                if all(standing is not None and standing.is_admitted for standing in self.standings()):
                    self.admitted.set()
            case Share():
                self._share(server, message)
            case ShareTaken(number=number):
                self._answered(number, server)
            case PagesAsked(call_id=call_id):
                self._poll(server, call_id)
            case PageTold(call_id=number):
                self._answered(number, server)
            case CannotGoOn(reason=reason):
                if self.failure is None:
                    self._premises.give_up(reason, f"as {server.record.name} has found")
            case GrammarAsked() | GrammarLeft():
                raise AssertionError("the server's own task takes these")
            case _:
                assert_never(message)

    def _answered(self, number: int, server: ApiServer) -> None:
        if answers := self._answers.get(number):
            answers.come(server.index)

    def _share(self, server: ApiServer, message: Share) -> None:
        if message.value is not None and message.key not in self._shared and len(self._shared) >= MAX_SHARED:
            logger.error(
                "%s shares more than %s things; nobody is told of %r", server.record.name, MAX_SHARED, message.key
            )
        else:
            if message.value is None:
                self._shared.pop(message.key, None)
            else:
                self._shared[message.key] = message.value
            number = next(self._numbers)
            self._tell_all(SharedIs(number, message.key, message.value))
            self._when_answered(number, server, self._others(server), lambda late: ShareKnown(message.call_id))

    def _poll(self, server: ApiServer, call_id: int) -> None:
        number, others = next(self._numbers), self._others(server)

        def pages(late: set[ClientIndex]) -> ApiInput:
            found = [
                PeerPage(each.page, each.is_up and each.index not in late)
                for each in self._servers
                if each is not server and each.page is not None
            ]
            return PeerPages(call_id, found)

        for each in others:
            each.tell(PageAsked(number))
        self._when_answered(number, server, others, pages)

    def _others(self, server: ApiServer) -> list[ApiServer]:
        return [each for each in self._servers if each is not server and each.is_up]

    def _when_answered(
        self,
        number: int,
        server: ApiServer,
        others: Sequence[ApiServer],
        answer: Callable[[set[ClientIndex]], ApiInput],
    ) -> None:
        """Tell this server, once these others have said what they were asked, or those that have not are late. Its
        successor numbers what it asks anew."""
        assert self._nursery is not None, "no server says anything before it runs"
        epoch = server.record.epoch
        answers = self._answers[number] = Answers({each.index for each in others})

        async def wait() -> None:
            if answers.missing:
                with trio.move_on_after(ANSWER_SECONDS):
                    await answers.complete.wait()
            del self._answers[number]
            if server.record.epoch == epoch:
                server.tell(answer(answers.missing))

        self._nursery.start_soon(wait)


def came(spec: EngineSpec, facts: EngineFacts, index: ClientIndex) -> EngineCame:
    return EngineCame(spec.engine_index, spec.epoch, spec.requests_address, spec.outputs_addresses[index], facts)
