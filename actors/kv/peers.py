"""The connector's side towards others: the tickets it gives, what it fetches with theirs, and its ears for those who
fetch from it. Used by actors/kv/main. What is fetched counts only once its owner has confirmed it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import final

import trio

from actors.kv.connecting import PeerAddress, addresses, boot_id, listen_at_host, listen_at_path
from actors.kv.conversation import Conversation
from actors.kv.kept_conversations import KeptConversations, open_conversation
from actors.kv.lending import Fetched, FetchError, LeaseId, Lender, Peers
from actors.kv.peer_messages import MAX_BLOCKS, Confirm, Confirmed, Extend, Get, GiveBack, Gone, LentBlocks
from actors.kv.peer_service import PeerService
from actors.kv.ticket import check, seconds_from_now, sign
from actors.kv.transports.choice import Transports, open_transports
from actors.kv.transports.tcp import seconds_for
from actors.kv.transports.transport import NotStartedError, Reading, Transport
from actors.kv.window import Window
from protocol.errors import StartError
from protocol.kv import KV_VERSION, BlockHash
from protocol.kv_ticket import KvTicket
from protocol.spec import KvSpec

SHORTEST_PERIOD = 0.1
"""Seconds between two words that we are at it, however short the other says its leases are."""


@contextlib.asynccontextmanager
async def open_peers(
    spec: KvSpec, window: Window, lender: Lender, transports: Sequence[Transport] | None = None
) -> AsyncIterator[OtherConnectors]:
    """Hears other connectors where the spec says, and speaks with them, until it is left; every `fetch` has to be over
    before. Then nothing here uses the window any more. Raises StartError."""
    if not spec.key:
        raise StartError("KV connectors need a key that they share")
    async with contextlib.AsyncExitStack() as opened:
        host, port = spec.peer_host, spec.peer_port
        ears = []
        if spec.peer_path is not None:
            ears.append(opened.enter_context(listen_at_path(spec.peer_path)))
        if host is not None:
            ears.append(opened.enter_context(listen_at_host(host, port)))
            port = ears[-1].getsockname()[1]
        if transports is None:
            has = await opened.enter_async_context(open_transports(spec, window))
        else:
            has = Transports(transports, None)
        service = PeerService(spec, window, lender, has.nixl)
        async with trio.open_nursery() as nursery:
            for ear in ears:
                nursery.start_soon(service.serve, ear)
            yield OtherConnectors(spec, port, window, has.readers, nursery)
            nursery.cancel_scope.cancel()


@final
class OtherConnectors(Peers):
    """Everything that other connectors are to this one."""

    def __init__(
        self,
        spec: KvSpec,
        port: int,
        window: Window,
        transports: Sequence[Transport],
        nursery: trio.Nursery,
    ) -> None:
        self._spec = spec
        self.port = port
        """Where we are heard over TCP."""
        self._window = window
        self._transports = transports
        self._nursery = nursery
        self._kept = KeptConversations()
        nursery.start_soon(self._kept.close_old)

    def ticket(self, lease_id: LeaseId, num_blocks: int, seconds: float) -> bytes:
        spec, layout = self._spec, self._window.layout
        words = KvTicket(
            version=KV_VERSION,
            engine_id=spec.engine_id,
            kv_epoch=spec.epoch,
            lease_id=lease_id,
            layout_digest=layout.digest,
            num_blocks=num_blocks,
            block_size=layout.block_size,
            expires_at=seconds_from_now(seconds),
            host=spec.peer_host,
            port=self.port,
            path=spec.peer_path,
            boot_id=boot_id() if spec.peer_path is not None else "",
        )
        return sign(words, spec.key)

    async def fetch(
        self,
        ticket: bytes,
        hashes: Sequence[BlockHash],
        take: Callable[[int], list[int]],
        quarantine: Callable[[Sequence[int]], Callable[[], None]],
    ) -> Fetched:
        began = trio.current_time()
        words = check(ticket, self._spec.key, self._spec.allowed_peers)
        if words.layout_digest != self._window.layout.digest:
            raise FetchError("layout", "blocks of the ticket's engine are not what ours are")
        address, conversation, lent = await self._begin(words, hashes[:MAX_BLOCKS])
        with contextlib.ExitStack() as stack:
            stack.callback(conversation.close)
            frames = take(len(lent.frames)) if lent.frames else []
            reading = Reading(lent.frames[: len(frames)], lent.num_frames, self._window, frames)
            transport = ""
            if frames:
                transport = await self._read(conversation, reading, lent.lease_seconds, quarantine)
                await _confirm(conversation, len(frames))
            with contextlib.suppress(FetchError):  # which takes nothing from what we have
                await conversation.tell(GiveBack())
                self._kept.keep(address, conversation)
                stack.pop_all()
        return Fetched(len(frames), reading.num_bytes, transport, trio.current_time() - began)

    async def _begin(
        self, ticket: KvTicket, hashes: Sequence[BlockHash]
    ) -> tuple[PeerAddress, Conversation, LentBlocks]:
        """With the connector that the ticket means: at one of its addresses, and what it lends."""
        problem = FetchError("unreachable", "the ticket has no address that could be reached from here")
        for address in addresses(ticket, any(transport.is_local for transport in self._transports)):
            try:
                return address, *await self._begin_at(address, ticket, hashes)
            except FetchError as error:
                if error.kind not in ("unreachable", "refused"):  # else it is nobody, or somebody in another container
                    raise
                problem = error
        raise problem

    async def _begin_at(
        self, address: PeerAddress, ticket: KvTicket, hashes: Sequence[BlockHash]
    ) -> tuple[Conversation, LentBlocks]:
        if (kept := self._kept.take(address)) is not None:
            try:
                return kept, await self._borrow(kept, ticket, hashes)
            except FetchError as error:
                if error.kind == "timeout":
                    raise  # else another may be there by now, or it had enough of this connection
        fresh = await open_conversation(address, self._spec.key)
        return fresh, await self._borrow(fresh, ticket, hashes)

    async def _borrow(self, conversation: Conversation, ticket: KvTicket, hashes: Sequence[BlockHash]) -> LentBlocks:
        """Closes the conversation if that fails."""
        with contextlib.ExitStack() as stack:
            stack.callback(conversation.close)
            conversation.facts.check(ticket, self._window.layout)
            await conversation.tell(Get(conversation.number(), ticket.lease_id, list(hashes)))
            answer: LentBlocks | Gone = await conversation.answer(LentBlocks, Gone)
            if isinstance(answer, Gone):
                raise FetchError("expired", "the lease of the ticket is over")
            is_possible = all(0 <= frame < answer.num_frames for frame in answer.frames) and answer.lease_seconds > 0
            if not is_possible or len(answer.frames) > len(hashes):
                raise FetchError("broken", "the other connector lends what it cannot have")
            stack.pop_all()
            return answer

    async def _read(
        self,
        conversation: Conversation,
        reading: Reading,
        lease_seconds: float,
        quarantine: Callable[[Sequence[int]], Callable[[], None]],
    ) -> str:
        """By the first transport that does it here; its name."""
        reasons = []
        for transport in self._transports:
            if transport.is_local and not conversation.wire.is_local:
                continue
            over = False
            try:
                await _read_under_lease(transport, conversation, reading, lease_seconds)
                over = True
                return transport.name
            except NotStartedError as error:
                over = True
                reasons.append(error.message)
            finally:
                if not over and not transport.stops_at_once:
                    self._nursery.start_soon(_release_once_settled, transport, quarantine(reading.frames))
        raise FetchError("unreachable", "; ".join(reasons) or "no transport leads there")


async def _release_once_settled(transport: Transport, release: Callable[[], None]) -> None:
    """Not if it is cancelled before: then this process ends, and all it has mapped."""
    await transport.settle()
    release()


async def _read_under_lease(
    transport: Transport, conversation: Conversation, reading: Reading, lease_seconds: float
) -> None:
    """With word to the owner meanwhile that we are at it. Raises FetchError."""
    problem: FetchError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_keep_extending, conversation, max(lease_seconds / 3, SHORTEST_PERIOD))
        try:
            with trio.fail_after(seconds_for(reading.num_bytes)):
                await transport.read(conversation, reading)
        except FetchError as error:  # not out of the nursery, which would put it into a group
            problem = error
        except trio.TooSlowError:
            problem = FetchError("timeout", f"{len(reading.frames)} blocks did not come by {transport.name} in time")
        nursery.cancel_scope.cancel()
    if problem is not None:
        raise problem


async def _keep_extending(conversation: Conversation, period: float) -> None:
    with contextlib.suppress(FetchError):  # the reading will find out
        while True:
            await trio.sleep(period)
            await conversation.tell(Extend())


async def _confirm(conversation: Conversation, num_blocks: int) -> None:
    """Raises FetchError."""
    await conversation.tell(Confirm(conversation.number(), num_blocks))
    if not (await conversation.answer(Confirmed)).holds:
        raise FetchError("expired", "the lease was over before its blocks had been read")
