"""Connections to other connectors that are kept for the next time: few, and not for long. Used by actors/kv/peers."""

from __future__ import annotations

from typing import final

import trio

from actors.kv.connecting import PeerAddress, connect
from actors.kv.conversation import Conversation
from actors.kv.greeting import GREETING_SECONDS, greet_owner
from actors.kv.lending import FetchError

KEPT_SECONDS = 30.0
"""Less than an owner waits for the next question (actors/kv/loans.py)."""
MAX_KEPT = 16


async def open_conversation(address: PeerAddress, key: bytes) -> Conversation:
    """With whoever is there and has the key. The caller's to close. Raises FetchError: "unreachable", "refused",
    "timeout", "broken"."""
    try:
        with trio.fail_after(GREETING_SECONDS):
            wire = await connect(address)
            try:
                return Conversation(wire, await greet_owner(wire, key))
            except BaseException:
                wire.close()
                raise
    except trio.TooSlowError:
        raise FetchError("timeout", f"{address} has not greeted within {GREETING_SECONDS:g} s") from None


@final
class KeptConversations:
    """Idle ones, by address; the last used is used again first."""

    def __init__(self) -> None:
        self._kept: list[tuple[PeerAddress, Conversation, float]] = []
        """With when it was put here."""

    def take(self, address: PeerAddress) -> Conversation | None:
        """One that seems to be alive."""
        while kept := next((kept for kept in reversed(self._kept) if kept[0] == address), None):
            self._kept.remove(kept)
            if kept[1].wire.is_quiet():
                return kept[1]
            kept[1].close()
        return None

    def keep(self, address: PeerAddress, conversation: Conversation) -> None:
        self._kept.append((address, conversation, trio.current_time()))
        if len(self._kept) > MAX_KEPT:
            self._kept.pop(0)[1].close()

    async def close_old(self) -> None:
        """Until cancelled, which closes them all."""
        try:
            while True:
                await trio.sleep(KEPT_SECONDS / 2)
                while self._kept and self._kept[0][2] + KEPT_SECONDS < trio.current_time():
                    self._kept.pop(0)[1].close()
        finally:
            while self._kept:
                self._kept.pop()[1].close()
