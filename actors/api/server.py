"""One of several API servers as the supervisor sees it: its process, its output handler, and the link between us.

The two live and die together: without its output handler the engines see that their client is gone, and abort what it
asked for. Used by actors/api/servers.py.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import final

import attrs
import trio

from actors.handles import ActorState, ApiTemplate
from actors.incarnation import open_incarnation
from actors.record import Record
from actors.rest import GiveUp
from protocol.api import (
    ApiInput,
    GrammarAnswered,
    GrammarAsked,
    GrammarLeft,
    HouseInput,
    OutputCame,
    OutputWent,
    PageTold,
    ServerIs,
)
from protocol.codec import API_INPUT, HOUSE_INPUT, KeyedCodec
from protocol.errors import GrammarError, TrillmError
from protocol.ids import ClientIndex, Epoch
from protocol.links import Links, ReceiveLink, SendLink, receive_batch
from protocol.sampling import Grammar, GrammarSource
from protocol.spec import ApiSpec, OutputSpec

KEY_BYTES = 16
MAX_GRAMMARS = 256
"""Of one API server, that are being checked."""

logger = logging.getLogger("trillm.supervisor")


@attrs.frozen
class Premises:
    """What API servers have of the supervisor."""

    links: Links
    checkpoint: str
    new_epoch: Callable[[], Epoch]
    address: Callable[[str], str]
    keep_alive: Callable[[Record, Callable[[], Awaitable[None]], GiveUp], Awaitable[None]]
    """Until it dies too often, or cannot start, which is told to the last one."""
    give_up: GiveUp
    """The end of the service."""
    states: Callable[[], list[ActorState]]
    """Of all actors."""
    check_grammar: Callable[[GrammarSource], Awaitable[Grammar]]


@final
class ApiServer:
    """Over all its incarnations."""

    def __init__(
        self,
        index: ClientIndex,
        template: ApiTemplate,
        premises: Premises,
        began: Callable[[ApiServer], None],
        take: Callable[[ApiServer, HouseInput], None],
    ) -> None:
        """`began`: called when there is a link, to tell what it has to know first. `take`: given what it says, but for
        what concerns nobody else."""
        self.index = index
        self.record = Record(f"api-{index}")
        self.output = Record(f"output-{index}")
        self.page: bytes | None = None
        """The last that it told of what it counts, over all incarnations."""
        self.past: bytes | None = None
        """The last that its predecessor told."""
        self.standing: ServerIs | None = None
        self.is_to_stop = False
        self.gone = trio.Event()
        """It has ended, and is not started again."""
        self._template = template
        self._premises = premises
        self._began = began
        self._take = take
        self._link: SendLink[ApiInput] | None = None
        self._output_came: OutputCame | None = None
        self._grammars: dict[int, trio.CancelScope] = {}

    @property
    def is_up(self) -> bool:
        return self._link is not None

    def tell(self, message: ApiInput) -> None:
        """Nothing, if it is down: it is told all when it begins."""
        if self._link is not None:
            self._link.send_nowait(message)

    def tell_of_output(self) -> None:
        if self._output_came is not None:
            self.tell(self._output_came)

    async def incarnation(self) -> None:
        """From start to end; never returns if it was to stop."""
        if not self.is_to_stop:
            await self._live()
        if self.is_to_stop:
            self.gone.set()
            await trio.sleep_forever()

    async def _live(self) -> None:
        premises, epoch, self.past = self._premises, self._premises.new_epoch(), self.page
        spec = ApiSpec(
            client_index=self.index,
            epoch=epoch,
            num_servers=self._template.num_servers,
            inbox_address=premises.address(f"a{self.index}.{epoch}.in"),
            house_address=premises.address(f"a{self.index}.{epoch}.up"),
            listeners=list(self._template.listeners),
            serving=self._template.serving,
            key=secrets.token_bytes(KEY_BYTES),
        )
        from_server = premises.links.pull(spec.house_address, KeyedCodec(HOUSE_INPUT, spec.key))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear, from_server, nursery)
                nursery.start_soon(premises.keep_alive, self.output, self._output_incarnation, self._do_without_output)
                async with open_incarnation(self.record, spec) as heard:
                    async for _ in heard:
                        self._link = premises.links.push(spec.inbox_address, KeyedCodec(API_INPUT, spec.key))
                        self._began(self)
                nursery.cancel_scope.cancel()
        finally:
            from_server.close()
            self.standing = None
            if self._link is not None:
                self._link.close()
                self._link = None

    def _do_without_output(self, reason: str, detail: str | None) -> None:
        """An API server without an output handler is none; whether another one does better, its own restarts show."""
        if self.output.cannot_start():
            return self._premises.give_up(reason, detail)
        self.record.fault = reason
        if self.record.process is not None:
            self.record.process.kill()
        return None

    async def _output_incarnation(self) -> None:
        premises, epoch = self._premises, self._premises.new_epoch()
        spec = OutputSpec(
            client_index=self.index,
            epoch=epoch,
            inbox_address=premises.address(f"o{self.index}.{epoch}.in"),
            app_address=premises.address(f"o{self.index}.{epoch}.app"),
            checkpoint=premises.checkpoint,
        )
        try:
            async with open_incarnation(self.output, spec) as heard:
                async for _ in heard:
                    self._output_came = OutputCame(epoch, spec.inbox_address, spec.app_address)
                    self.tell_of_output()
        finally:
            self._output_came = None
            self.tell(OutputWent(self.output.last_end or "?"))

    # ------------------------------------------------------------------ what it says

    async def _hear(self, from_server: ReceiveLink[HouseInput], nursery: trio.Nursery) -> None:
        while True:
            for message in await receive_batch(from_server):
                self._act(message, nursery)

    def _act(self, message: HouseInput, nursery: trio.Nursery) -> None:
        match message:
            case GrammarAsked():
                self._start_check(message, nursery)
            case GrammarLeft(call_id=call_id):
                if scope := self._grammars.get(call_id):
                    scope.cancel()
            case ServerIs():
                self.standing = message
                self._take(self, message)
            case PageTold(page=page):
                self.page = page
                self._take(self, message)
            case _:
                self._take(self, message)

    def _start_check(self, asked: GrammarAsked, nursery: trio.Nursery) -> None:
        if len(self._grammars) >= MAX_GRAMMARS:
            complaint = "Too many grammars are waiting to be checked"
            return self.tell(GrammarAnswered(asked.call_id, None, complaint, "grammar_queue_full", is_busy=True))
        scope = self._grammars[asked.call_id] = trio.CancelScope()  # that it is not wanted may be in the same batch
        return nursery.start_soon(self._check_grammar, asked, scope)

    async def _check_grammar(self, asked: GrammarAsked, scope: trio.CancelScope) -> None:
        with scope:
            try:
                grammar = await self._premises.check_grammar(asked.source)
                self.tell(GrammarAnswered(asked.call_id, grammar))
            except TrillmError as error:
                is_busy = not isinstance(error, GrammarError)
                self.tell(GrammarAnswered(asked.call_id, None, error.message, error.code, is_busy=is_busy))
            finally:
                del self._grammars[asked.call_id]
