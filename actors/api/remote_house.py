"""The house as an API server of several has it: engines and its own output handler over links of its own, all else from
the supervisor. Fulfils actors.handles.ApiHouse; made by actors/api/main.py.

The supervisor and the output handler speak over different links. So an engine may be heard before it is known here what
it has learnt: that it is attached is then told to the app once it is.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import assert_never, final

import trio

from actors.api.standings import heard
from actors.handles import ActorState, EngineLost, EventOutlet, HouseEvent, HouseFailed, OutputLost, ServerNews
from actors.ready_engines import ReadyEngine, ReadyEngines
from protocol.api import (
    ActorsAre,
    ApiInput,
    CannotGoOn,
    EngineCame,
    EngineWent,
    GrammarAnswered,
    GrammarAsked,
    GrammarLeft,
    HouseInput,
    HouseOver,
    OutputCame,
    OutputWent,
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
from protocol.codec import APP_INPUT, ENGINE_INPUT, OUTPUT_INPUT
from protocol.errors import GrammarError, UnavailableError
from protocol.ids import ClientIndex, EngineIndex, Epoch
from protocol.links import Inbox, Links, Outbox, ReceiveLink, SendLink, receive_batch
from protocol.messages import AppInput, AttachEngine, EngineAttached, EngineInput, OutputInput
from protocol.sampling import Grammar, GrammarSource
from protocol.spec import EngineFacts

ANSWER_SECONDS = 3.0
"""For what the supervisor answers after a second at most, if it is not held up."""
GRAMMAR_SECONDS = 60.0
"""Longer than all deadlines of the checkers together."""

Answer = GrammarAnswered | ShareKnown | PeerPages


@final
class RemoteHouse:
    """Of one API server."""

    def __init__(self, client: ClientIndex, links: Links, supervisor: Outbox[HouseInput]) -> None:
        self.name = f"api-{client}"
        self.output_name = f"output-{client}"
        self._links = links
        self._supervisor = supervisor
        self._app: EventOutlet[HouseEvent] = EventOutlet()
        self._others: EventOutlet[ServerNews] = EventOutlet()
        self._engines = ReadyEngines()
        self._early: dict[EngineIndex, EngineAttached] = {}
        """Heard of before they came."""
        self._output: SendLink[OutputInput] | None = None
        self._pump: trio.CancelScope | None = None
        self._states = ActorsAre([])
        self._told_at = trio.current_time()
        self._ids = count(1)
        self._calls: dict[int, trio.MemorySendChannel[Answer]] = {}
        self._say_stop, self._stops = trio.open_memory_channel[int](math.inf)

    # ------------------------------------------------------------------ House

    def listen(self, take: Callable[[HouseEvent], None]) -> None:
        self._app.listen(take)

    def engine_facts(self, index: EngineIndex, epoch: Epoch) -> EngineFacts | None:
        return self._engines.facts(index, epoch)

    def send_to_engine(self, index: EngineIndex, message: EngineInput) -> bool:
        return self._engines.send(index, message)

    def send_to_output(self, message: OutputInput) -> bool:
        if self._output is None:
            return False
        self._output.send_nowait(message)
        return True

    async def check_grammar(self, source: GrammarSource) -> Grammar:
        call_id = next(self._ids)
        answer: Answer | None = None
        try:
            answer = await self._ask(GrammarAsked(call_id, source), call_id, GRAMMAR_SECONDS)
        finally:
            if answer is None:
                self._supervisor.send_nowait(GrammarLeft(call_id))
        assert isinstance(answer, GrammarAnswered)
        if answer.grammar is not None:
            return answer.grammar
        complaint = answer.complaint or "the grammar could not be checked"
        raise UnavailableError(complaint, code=answer.code) if answer.is_busy else GrammarError(complaint)

    def states(self) -> list[ActorState]:
        return heard(self._states, trio.current_time() - self._told_at, self.output_name)

    # ------------------------------------------------------------------ ApiHouse

    def follow(self, take: Callable[[ServerNews], None]) -> None:
        self._others.listen(take)

    def stops(self) -> AsyncIterator[int]:
        return self._stops

    def tell(self, standing: ServerIs) -> None:
        self._supervisor.send_nowait(standing)

    def tell_page(self, page: bytes, call_id: int = 0) -> None:
        self._supervisor.send_nowait(PageTold(call_id, page))

    async def share(self, key: str, value: bytes | None) -> None:
        call_id = next(self._ids)
        await self._ask(Share(call_id, key, value), call_id, ANSWER_SECONDS)

    def share_soon(self, key: str, value: bytes | None) -> None:
        self._supervisor.send_nowait(Share(next(self._ids), key, value))

    async def pages(self) -> list[PeerPage]:
        call_id = next(self._ids)
        answer = await self._ask(PagesAsked(call_id), call_id, ANSWER_SECONDS)
        assert isinstance(answer, PeerPages)
        return answer.pages

    def give_up(self, reason: str) -> None:
        self._supervisor.send_nowait(CannotGoOn(reason))

    async def _ask(self, message: HouseInput, call_id: int, seconds: float) -> Answer:
        """Raises UnavailableError if the supervisor does not answer."""
        say, answer = trio.open_memory_channel[Answer](1)
        self._calls[call_id] = say
        try:
            self._supervisor.send_nowait(message)
            with trio.fail_after(seconds):
                return await answer.receive()
        except trio.TooSlowError:
            raise UnavailableError(f"The supervisor has not answered within {seconds:g} s") from None
        finally:
            del self._calls[call_id]

    # ------------------------------------------------------------------ what the supervisor says

    async def run(self, inbox: Inbox[ApiInput]) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for message in await receive_batch(inbox):
                    self._take(message, nursery)

    def _take(self, message: ApiInput, nursery: trio.Nursery) -> None:
        match message:
            case EngineCame():
                self._engine_came(message)
            case EngineWent():
                self._engine_went(message)
            case OutputCame():
                self._output_came(message, nursery)
            case OutputWent(reason=reason):
                self._output_went(reason)
            case ActorsAre():
                self._states, self._told_at = message, trio.current_time()
            case HouseOver(reason=reason):
                self._app.send_nowait(HouseFailed(reason))
            case StopServing(signal=signal):
                self._say_stop.send_nowait(signal)
            case GrammarAnswered(call_id=call_id) | ShareKnown(call_id=call_id):
                self._answer(call_id, message)
            case PeerPages(call_id=call_id) if call_id > 0:
                self._answer(call_id, message)
            case SharedIs(number=number):
                self._others.send_nowait(message)
                self._supervisor.send_nowait(ShareTaken(number))
            case PeerPages() | PageAsked():
                self._others.send_nowait(message)
            case _:
                assert_never(message)

    def _answer(self, call_id: int, answer: Answer) -> None:
        if say := self._calls.get(call_id):
            say.send_nowait(answer)

    def _engine_came(self, message: EngineCame) -> None:
        index = message.engine_index
        attach = AttachEngine(index, message.epoch, message.requests_address, message.outputs_address)
        link = self._links.push(message.requests_address, ENGINE_INPUT)
        self._engines.come(ReadyEngine(attach, message.facts, link))
        self.send_to_output(attach)
        early = self._early.pop(index, None)
        if early is not None and early.epoch == message.epoch:
            self._app.send_nowait(early)

    def _engine_went(self, message: EngineWent) -> None:
        self._engines.go(message.engine_index, message.epoch)
        self._app.send_nowait(EngineLost(message.engine_index, message.epoch, message.reason, message.from_outside))

    # ------------------------------------------------------------------ the output handler

    def _output_came(self, message: OutputCame, nursery: trio.Nursery) -> None:
        from_output = self._links.pull(message.app_address, APP_INPUT)
        self._output = self._links.push(message.inbox_address, OUTPUT_INPUT)
        self._pump = trio.CancelScope()
        nursery.start_soon(self._hear_output, from_output, self._pump)
        for engine in self._engines:
            self._output.send_nowait(engine.attach)

    def _output_went(self, reason: str) -> None:
        self._early.clear()
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
        if self._output is not None:
            self._output.close()
            self._output = None
            self._app.send_nowait(OutputLost(reason))

    async def _hear_output(self, from_output: ReceiveLink[AppInput], scope: trio.CancelScope) -> None:
        try:
            with scope:
                while True:
                    for message in await receive_batch(from_output):
                        if not scope.cancel_called:
                            self._from_output(message)
        finally:
            from_output.close()

    def _from_output(self, message: AppInput) -> None:
        if isinstance(message, EngineAttached) and self.engine_facts(message.engine_index, message.epoch) is None:
            self._early[message.engine_index] = message
        else:
            self._app.send_nowait(message)
