"""What one other connector, which has the key, has been lent, and asks of it. Used by actors/kv/peer_service.

It holds one lease at a time, of which what was lent is remembered: the reader names no frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import trio

from actors.kv.conversation import ANSWER_SECONDS
from actors.kv.lending import FetchError, LeaseId, Lender, Lent
from actors.kv.peer_messages import (
    MAX_MESSAGE_BYTES,
    Confirm,
    Confirmed,
    Extend,
    Get,
    GiveBack,
    Gone,
    LentBlocks,
    OpenAgent,
    OpenedAgent,
    OpenWindow,
    Question,
    SendBlocks,
    encode,
    read_question,
)
from actors.kv.transports.nixl import Opening
from actors.kv.transports.nixl_agent import NixlAgent
from actors.kv.transports.shm import hand_over
from actors.kv.transports.tcp import seconds_for, send_blocks
from actors.kv.window import Window
from actors.kv.wire import Wire
from protocol.spec import KvSpec

IDLE_SECONDS = 60.0
"""Between two questions."""


@final
class Loans:
    """Of one connection."""

    def __init__(self, wire: Wire, spec: KvSpec, window: Window, lender: Lender, nixl: NixlAgent | None) -> None:
        self._wire = wire
        self._spec = spec
        self._window = window
        self._lender = lender
        self._opening = Opening(nixl)
        self._lease_id = LeaseId("")
        self._lent: Sequence[Lent] = ()
        self._extended_at = 0.0
        self._is_over_at = 0.0
        """When nobody can still be at it who is not far too slow."""

    async def converse(self) -> None:
        """Until the peer ends it, breaks a rule, or has been silent for too long. Raises FetchError."""
        try:
            while True:
                try:
                    with trio.fail_after(IDLE_SECONDS):
                        message = await self._wire.receive(MAX_MESSAGE_BYTES)
                except trio.TooSlowError:
                    return
                question = read_question(message)
                try:
                    await self._answer(question)
                except trio.TooSlowError:
                    raise FetchError("timeout", "the other connector takes no answer") from None
        finally:
            self._opening.close()
            self._leave()

    async def _answer(self, question: Question) -> None:
        if not isinstance(question, Extend):
            self._opening.close()
        match question:
            case Get():
                await self._say(self._lend(question))
            case Extend():
                self._extend()
            case GiveBack():
                if self._lease_id:
                    self._lender.give_back(self._lease_id)
                    self._forget()
            case Confirm(number, num_blocks):
                await self._say(Confirmed(number, self._lender.confirm(self._lease_id, self._first(num_blocks))))
            case OpenWindow(number):
                with trio.fail_after(ANSWER_SECONDS):
                    await hand_over(self._wire, number, self._window)
            case OpenAgent(number):
                await self._say(self._opening.open(number))
            case SendBlocks(number, num_blocks):
                lent = self._first(num_blocks)
                await send_blocks(self._wire, number, lent, self._window, self._is_to_be_sent)

    async def _say(self, answer: LentBlocks | Gone | Confirmed | OpenedAgent) -> None:
        with trio.fail_after(ANSWER_SECONDS):
            await self._wire.send(encode(answer))

    def _lend(self, question: Get) -> LentBlocks | Gone:
        self._leave()
        borrowed = self._lender.borrow(LeaseId(question.lease_id))
        if borrowed is None:
            return Gone(question.number)
        by_hash = {lent.block_hash: lent for lent in borrowed}
        found = []
        for block_hash in question.hashes:
            if block_hash not in by_hash:
                break
            found.append(by_hash[block_hash])
        self._lease_id, self._lent = LeaseId(question.lease_id), found
        self._extended_at = trio.current_time()
        self._is_over_at = self._extended_at + seconds_for(len(found) * self._window.frame_bytes)
        frames = [lent.frame for lent in found]
        return LentBlocks(question.number, frames, self._window.num_frames, self._spec.lease_seconds)

    def _leave(self) -> None:
        """What was not given back."""
        if self._lease_id:
            self._lender.leave(self._lease_id)
            self._forget()

    def _forget(self) -> None:
        self._lease_id, self._lent = LeaseId(""), ()

    def _extend(self) -> None:
        """Not more often than makes sense, nor for ever."""
        now = trio.current_time()
        if self._lease_id and self._extended_at + self._spec.lease_seconds / 4 <= now < self._is_over_at:
            self._extended_at = now
            self._lender.extend(self._lease_id)

    def _first(self, num_blocks: int) -> Sequence[Lent]:
        if not 0 < num_blocks <= len(self._lent):
            raise FetchError("broken", f"{num_blocks} blocks are asked for where {len(self._lent)} were lent")
        return self._lent[:num_blocks]

    def _is_to_be_sent(self, lent: Sequence[Lent]) -> bool:
        """The reader says nothing while it receives, so that our sending says that it is at it."""
        self._extend()
        return self._lender.confirm(self._lease_id, lent)
