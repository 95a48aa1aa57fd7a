"""A host that keeps ranks for the leading one, and nothing else: `trillm serve --headless`. Used by app/headless.

What it does is what the leading host last said. When nothing is heard from there for some seconds its ranks end, since
without that host they cannot go on, and it tries to join again, for ever.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from itertools import count
from typing import final

import trio

from actors.handles import FollowingSpec
from actors.hosts.kept_ranks import KeptRanks
from protocol.codec import HOST_ORDER, HOST_REPORT
from protocol.curve import with_key
from protocol.errors import StartError
from protocol.hosts import BEAT_SECONDS, SILENT_SECONDS, HostOrder, HostReport
from protocol.links import Inbox, Links, Outbox, open_links
from protocol.messages import VERSION
from protocol.net_address import address_towards, netloc, resolve

NOTHING_HEARD = (
    "it is not up, has another --node-key-file, cannot reach this host, or hears another host of the same --node-rank"
)

logger = logging.getLogger("trillm.hosts")


@final
class Life:
    """Of this process, over all its attempts to join: what was said and heard last. A network that was cut brings what
    was said before only afterwards."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.numbers = count(1)
        """Of reports."""
        self._leader, self._number = "", 0
        self._past_leaders: set[str] = set()

    def is_late(self, order: HostOrder) -> bool:
        """Whether something newer was heard."""
        return order.leader in self._past_leaders or (order.leader == self._leader and order.number <= self._number)

    def hear(self, order: HostOrder) -> None:
        if self._leader not in ("", order.leader):
            self._past_leaders.add(self._leader)
        self._leader, self._number = order.leader, order.number


async def follow(spec: FollowingSpec) -> None:
    """Until cancelled. Raises StartError when the leading host refuses this one."""
    life = Life()
    with open_links(spec.curve) as links:
        logger.info("host %s of %s joins host 0 at %s", spec.number, spec.num_hosts, spec.endpoint)
        told = ""
        while True:
            problem = ""
            try:
                if not await _session(spec, life, links):
                    problem = NOTHING_HEARD
            except OSError as error:  # no way to that host, or nobody knows its name
                problem = str(error)
                await trio.sleep(SILENT_SECONDS)
            if problem and problem != told:
                logger.warning("host 0 cannot be joined at %s: %s; it is tried again", spec.endpoint, problem)
            told = problem


async def _session(spec: FollowingSpec, life: Life, links: Links) -> bool:
    """Until the leading host has been silent for some time, or is another one; whether it was there at all."""
    own, leading = await trio.to_thread.run_sync(_addresses, spec, abandon_on_cancel=True)  # names can take long
    with contextlib.ExitStack() as stack:
        orders = stack.enter_context(contextlib.closing(links.pull(f"tcp://{own}", HOST_ORDER)))
        outbox = stack.enter_context(contextlib.closing(links.push(leading, HOST_REPORT)))
        async with trio.open_nursery() as nursery:
            host = _Host(spec, life, orders.address, nursery)
            nursery.start_soon(host.report, outbox)
            await host.obey(orders)
            nursery.cancel_scope.cancel()
    return host.has_joined


def _addresses(spec: FollowingSpec) -> tuple[str, str]:
    """Our own, and where the leading host hears. Raises OSError."""
    own = address_towards(spec.host, spec.port)
    leading = netloc(resolve(spec.host, spec.port), spec.port)
    return netloc(own, "*"), with_key(f"tcp://{leading}", spec.leading_key)


@final
class _Host:
    """This one, as long as it hears from the same leading host."""

    def __init__(self, spec: FollowingSpec, life: Life, address: str, nursery: trio.Nursery) -> None:
        self._spec = spec
        self._life = life
        self._address = address
        self._leader = ""
        self._news = trio.Event()
        self._ranks = KeptRanks(nursery, spec.local, self._wake)

    @property
    def has_joined(self) -> bool:
        return bool(self._leader)

    async def report(self, outbox: Outbox[HostReport]) -> None:
        """For ever: how everything is, at once when something changes."""
        spec = self._spec
        while True:
            self._news = trio.Event()
            outbox.send_nowait(
                HostReport(
                    version=VERSION,
                    host=spec.number,
                    num_hosts=spec.num_hosts,
                    life=self._life.id,
                    address=self._address,
                    model=spec.model,
                    leader=self._leader,
                    ranks=self._ranks.reports(),
                    number=next(self._life.numbers),
                )
            )
            with trio.move_on_after(BEAT_SECONDS):
                await self._news.wait()

    async def obey(self, orders: Inbox[HostOrder]) -> None:
        """Until nothing is heard, or of another leading host. Raises StartError when this host is refused."""
        heard_at = trio.current_time()
        while True:
            with trio.move_on_at(heard_at + SILENT_SECONDS) as scope:
                order = await orders.receive()
            if scope.cancelled_caught:
                if self.has_joined:
                    logger.error("host 0 has not been heard of for %.0f s: its ranks here end", SILENT_SECONDS)
                return
            if order.life != self._life.id or self._life.is_late(order):
                continue
            self._life.hear(order)
            if order.refusal is not None:
                raise StartError(f"host 0 refuses this one: {order.refusal}")
            if self.has_joined and order.leader != self._leader:
                logger.error("host 0 was started again: its ranks here end")
                return
            if not self.has_joined:
                logger.info("host 0 is there")
                self._leader = order.leader
                self._wake()
            heard_at = trio.current_time()
            self._ranks.keep(order.ranks)

    def _wake(self) -> None:
        self._news.set()
