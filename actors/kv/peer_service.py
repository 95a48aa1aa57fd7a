"""Towards other connectors, the owner's side: who has the key is lent blocks. Used by actors/kv/peers.

Each connection is a task that ends for whatever happens on it: garbage, silence, or a peer that takes nothing; and
there are never more of them than so many.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator
from typing import final

import trio

from actors.kv.greeting import GREETING_SECONDS, OwnerFacts, greet_reader
from actors.kv.lending import FetchError, Lender
from actors.kv.loans import Loans
from actors.kv.transports.nixl_agent import NixlAgent
from actors.kv.window import Window
from actors.kv.wire import Wire
from protocol.kv import KV_VERSION
from protocol.spec import KvSpec

MAX_CONNECTIONS = 128
"""Of each listener."""
MAX_STRANGERS = 16
"""Of these, those that have not greeted yet."""

logger = logging.getLogger("trillm.kv")


@final
class PeerService:
    """Of one connector."""

    def __init__(self, spec: KvSpec, window: Window, lender: Lender, nixl: NixlAgent | None = None) -> None:
        self._spec = spec
        self._window = window
        self._lender = lender
        self._nixl = nixl
        self._refused = 0

    async def serve(self, listener: socket.socket) -> None:
        """Until cancelled."""
        door = _Door()
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(listener)
                try:
                    connected, _ = listener.accept()
                except OSError as error:
                    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                        await trio.sleep(0.1)  # others may end meanwhile
                    continue  # it has gone again
                if not door.has_room:
                    connected.close()
                    continue
                door.strangers += 1
                nursery.start_soon(self._welcome, Wire(connected), door)

    async def _welcome(self, wire: Wire, door: _Door) -> None:
        """One connection, to its end."""
        try:
            try:
                with trio.move_on_after(GREETING_SECONDS) as patience:
                    await self._greet(wire)
            finally:
                door.strangers -= 1
            if not patience.cancelled_caught:
                with door.guest():
                    await Loans(wire, self._spec, self._window, self._lender, self._nixl).converse()
        except FetchError as error:
            logger.debug("a connection of another connector ended: %s", error)
        except Exception:
            logger.exception("a connection of another connector was ended by our mistake")
        finally:
            wire.close()

    async def _greet(self, wire: Wire) -> None:
        layout = self._window.layout
        facts = OwnerFacts(KV_VERSION, self._spec.engine_id, self._spec.epoch, layout.digest, layout.frame_bytes)
        try:
            if wire.is_local and wire.peer_uid() != os.getuid():
                raise FetchError("refused", "a process of another user")
            await greet_reader(wire, self._spec.key, facts)
        except FetchError as error:
            if error.kind == "refused":
                self._refused += 1
                if self._refused == 1:
                    logger.warning("a connection to the KV connector was refused, to %s; others are not told", error)
            raise


@final
class _Door:
    """How many are in, and how many of them are strangers."""

    def __init__(self) -> None:
        self.strangers = 0
        self._guests = 0

    @property
    def has_room(self) -> bool:
        return self.strangers < MAX_STRANGERS and self.strangers + self._guests < MAX_CONNECTIONS

    @contextlib.contextmanager
    def guest(self) -> Iterator[None]:
        self._guests += 1
        try:
            yield
        finally:
            self._guests -= 1
