"""The other API servers, as one of several has them: through the supervisor (actors/api), which does not look into what
they tell each other. Fulfils app.peers.Peers and app.engine_peers.EnginePeers; made by app/api_server.py.

What is shared has a key each, and the last word holds. All hear the changes in one order, their own too, so that they
end with the same. Two clients that load an adapter of one name by two servers at once are both told that they have;
the one whose change comes later has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never, final

import msgspec
import trio

from actors.handles import ApiHouse, ServerNews
from app.adapters import Adapter, Adapters
from app.metrics import Metrics
from app.metrics_page import read_page
from app.peers import CountedElsewhere
from app.startup import SHARED_AS, Startup
from protocol.api import PageAsked, PeerPage, PeerPages, ServerIs, SharedIs
from protocol.errors import UnavailableError
from protocol.ids import EngineIndex
from protocol.operations import RunState

TELL_SECONDS = 1.0
PAGE_SECONDS = 2.0
"""What is counted in between may be lost with this process."""

ADAPTER, HELD, CACHES, SETTLED = "adapter", "held", "caches", "settled"
"""What keys begin with, before a space."""
_GONE = b""
"""In the place of an adapter that is there from the start, wherever a server begins anew."""

_ADAPTER = msgspec.msgpack.Decoder(Adapter)
_STATE = msgspec.msgpack.Decoder(RunState)
_SECONDS = msgspec.msgpack.Decoder(dict[str, float])

logger = logging.getLogger("trillm")


class Learns(Protocol):
    """What of app/engine_client.py hears of the others."""

    def learn(self, index: EngineIndex, state: RunState) -> None: ...

    def forget_caches(self) -> None: ...


@final
class RemotePeers:
    """Of one API server."""

    def __init__(self, house: ApiHouse, startup: Startup | None = None) -> None:
        """`startup` is told of the whole server's."""
        self._house = house
        self._startup = startup
        self._is_unsettled = False
        self._first_names: frozenset[str] = frozenset()
        self._poll = trio.Lock()
        self._polled_at = -1.0
        self._polled: list[CountedElsewhere] = []

    # ------------------------------------------------------------------ Peers

    async def pages(self) -> Sequence[CountedElsewhere]:
        """Who asks while another one is answered shares the next answer."""
        asked_at = trio.current_time()
        async with self._poll:
            if self._polled_at < asked_at:
                begun = trio.current_time()
                try:
                    self._polled = list(map(read, await self._house.pages()))
                except (UnavailableError, msgspec.DecodeError) as error:
                    logger.warning("what other API servers count is not told: %s", error)
                    self._polled = []
                self._polled_at = begun  # not before: who asks may be cancelled
            return self._polled

    async def adapter_came(self, adapter: Adapter) -> None:
        await self._house.share(f"{ADAPTER} {adapter.name}", msgspec.msgpack.encode(adapter))

    async def adapter_went(self, name: str) -> None:
        await self._house.share(f"{ADAPTER} {name}", _GONE if name in self._first_names else None)

    # ------------------------------------------------------------------ EnginePeers

    def held(self, index: EngineIndex, state: RunState) -> None:
        self._is_unsettled = True
        self._house.share_soon(f"{HELD} {index}", msgspec.msgpack.encode(state))

    def caches_emptied(self) -> None:
        self._is_unsettled = True
        self._house.share_soon(CACHES, None)

    async def settle(self) -> None:
        if self._is_unsettled:
            self._is_unsettled = False
            try:
                await self._house.share(SETTLED, None)  # nothing, but behind the others
            except UnavailableError as error:
                logger.warning("other API servers may not know how engines are held: %s", error.message)

    # ------------------------------------------------------------------ following the others

    def follow(self, client: Learns, adapters: Adapters, metrics: Metrics) -> None:
        """From now on what the others let us know changes these."""
        self._first_names = frozenset(adapter.name for adapter in adapters)

        def take(news: ServerNews) -> None:
            match news:
                case SharedIs(key=key, value=value):
                    self._learn(key, value, client, adapters)
                case PageAsked(call_id=call_id):
                    self._house.tell_page(metrics.page(), call_id)
                case PeerPages(pages=[PeerPage(page=page), *_]):
                    metrics.past = read_page(page)
                case PeerPages():
                    pass
                case _:
                    assert_never(news)

        self._house.follow(take)

    def _learn(self, key: str, value: bytes | None, client: Learns, adapters: Adapters) -> None:
        kind, _, name = key.partition(" ")
        if kind == ADAPTER and value:
            adapters.put(_ADAPTER.decode(value))
        elif kind == ADAPTER:
            adapters.discard(name)
        elif kind == HELD and value:
            client.learn(EngineIndex(int(name)), _STATE.decode(value))
        elif kind == CACHES:
            client.forget_caches()
        elif kind == SHARED_AS and value and self._startup is not None:
            self._startup.take(_SECONDS.decode(value))

    async def tell(self, standing: Callable[[], ServerIs], metrics: Metrics) -> None:
        """How this server is and what it counts, until cancelled."""
        page_at = trio.current_time() + PAGE_SECONDS
        while True:
            self._house.tell(standing())
            if trio.current_time() >= page_at:
                page_at = trio.current_time() + PAGE_SECONDS
                self._house.tell_page(metrics.page())
            await trio.sleep(TELL_SECONDS)


def read(told: PeerPage) -> CountedElsewhere:
    """Raises msgspec.DecodeError."""
    return CountedElsewhere(read_page(told.page), told.is_live)
