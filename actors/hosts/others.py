"""The other hosts, as the one that leads sees them: it hears how they are, and tells them which ranks to keep.

Used by the supervisor. A host is there as long as it is heard of and hears us; one that is started again, or has had to
join again, has lost its ranks of the time before.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import final

import trio

from actors.handles import HostsSpec
from actors.hosts.remote_rank import RemoteRank
from protocol.codec import HOST_ORDER, HOST_REPORT
from protocol.hosts import BEAT_SECONDS, SILENT_SECONDS, HostOrder, HostReport
from protocol.ids import Epoch
from protocol.links import Links, ReceiveLink, SendLink, receive_batch
from protocol.messages import VERSION
from protocol.net_address import netloc, resolve
from protocol.spec import RankSpec

PRESENT_SECONDS = 3 * BEAT_SECONDS
"""A host that hears us and has been heard of within this time takes part in the next start."""
GONE_SECONDS = 3.0
"""How long a host may take to say that it has a rank no more. It starts none beside it, so that nothing hangs on it."""
REMIND_SECONDS = 30.0

logger = logging.getLogger("trillm.supervisor")


@final
class OtherHost:
    """One of them, over all its lives."""

    def __init__(self, number: int, leader: str) -> None:
        """`leader`: our own life."""
        self.number = number
        self._leader = leader
        self.life: str | None = None
        """None: nothing was heard of it, or nothing for long."""
        self.address = ""
        self.hears_us = False
        self.heard_at = -float("inf")
        self.ranks: dict[tuple[Epoch, int], RemoteRank] = {}
        self.link: SendLink[HostOrder] | None = None
        self.refusal: str | None = None
        self._numbers = count(1)
        """Of orders."""
        self._heard = ("", 0)
        """The life and the number of its last report."""

    @property
    def silence(self) -> float:
        return trio.current_time() - self.heard_at

    @property
    def is_present(self) -> bool:
        return self.hears_us and self.refusal is None and self.silence < PRESENT_SECONDS

    @property
    def is_deaf(self) -> bool:
        """It is heard of, and nothing shows that orders get there: a firewall may be in the way."""
        return self.life is not None and self.refusal is None and not self.hears_us

    def tell(self) -> None:
        """What is wanted of it."""
        if self.link is not None and self.life is not None:
            orders = [order for rank in self.ranks.values() if (order := rank.order()) is not None]
            self.link.send_nowait(HostOrder(self._leader, self.life, orders, self.refusal, next(self._numbers)))

    def is_late(self, report: HostReport) -> bool:
        """Whether something newer of the same life was heard."""
        life, number = self._heard
        return report.life == life and report.number <= number

    def forgive(self, seconds: float) -> None:
        """So long it was we who did not listen; what has come since then is not made younger by it."""
        self.heard_at = min(self.heard_at + seconds, trio.current_time())

    def take(self, report: HostReport) -> None:
        self.heard_at, self._heard = trio.current_time(), (report.life, report.number)
        hears_us = report.leader == self._leader
        if self.hears_us and not hears_us:  # it has not heard of us for long, and has joined again without its ranks
            self.lose_ranks(f"cut off with host {self.number}")
        elif hears_us and not self.hears_us:
            logger.info("host %s is there", self.number)
        self.hears_us = hears_us
        if not hears_us:
            return  # its ranks are somebody else's
        told = {(rank.epoch, rank.rank): rank for rank in report.ranks}
        for key, rank in self.ranks.items():
            if key in told:
                rank.take(told[key])
            elif not rank.is_alive():
                rank.gone.set()

    def leave(self, how: str) -> None:
        """This life is over, for us."""
        if self.link is not None:
            self.link.close()
        self.life, self.link, self.refusal, self.hears_us = None, None, None, False
        self.lose_ranks(how)

    def lose_ranks(self, how: str) -> None:
        for rank in self.ranks.values():
            rank.lose(how, from_outside=True)
            rank.gone.set()


@final
class OtherHosts:
    """All but the leading one."""

    def __init__(self, spec: HostsSpec, links: Links) -> None:
        """Raises OSError where the address cannot be listened on."""
        self._spec = spec
        self._links = links
        life = secrets.token_hex(8)
        self._hosts = [OtherHost(number, life) for number in range(1, spec.num_hosts)]
        self._news = trio.Event()
        self._scope = trio.CancelScope(shield=True)
        address = f"tcp://{netloc(resolve(spec.host, spec.port), spec.port)}"
        self._reports: ReceiveLink[HostReport] = links.pull(address, HOST_REPORT)

    async def run(self) -> None:
        """Until `stop`, also when all around is cancelled: hosts are told last of all that their ranks are to end."""
        with contextlib.closing(self._reports), self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear)
                nursery.start_soon(self._tell)

    def stop(self) -> None:
        self._scope.cancel()

    async def until_all_there(self) -> None:
        """Before that a start would be in vain."""
        while missing := [host for host in self._hosts if not host.is_present]:
            deaf = " (which speaks, but does not say that it hears this host)"
            names = ", ".join(f"host {host.number}{deaf if host.is_deaf else ''}" for host in missing)
            logger.info("waiting for %s of %s hosts, at %s", names, self._spec.num_hosts, self._spec.endpoint)
            with trio.move_on_after(REMIND_SECONDS):
                while not all(host.is_present for host in self._hosts):
                    await self._news.wait()

    def open_rank(self, spec: RankSpec, name: str) -> AbstractAsyncContextManager[RemoteRank] | None:
        """On the host that is to have it; None if that is this one."""
        number = spec.rank // spec.engine.ranks_per_host
        return self._open(spec, self._hosts[number - 1]) if number > 0 else None

    @asynccontextmanager
    async def _open(self, spec: RankSpec, host: OtherHost) -> AsyncIterator[RemoteRank]:
        key = spec.epoch, spec.rank
        rank = RemoteRank(spec, host.number, lambda: host.silence >= PRESENT_SECONDS, host.tell)
        host.ranks[key] = rank
        if host.life is None or host.refusal is not None:
            rank.lose(f"host {host.number} is gone", from_outside=True)
            rank.gone.set()
        host.tell()
        try:
            yield rank
        finally:
            rank.lose(f"no longer wanted on host {host.number}", from_outside=False)
            with trio.move_on_after(GONE_SECONDS, shield=True):
                await rank.gone.wait()
            del host.ranks[key]

    async def _hear(self) -> None:
        while True:
            for report in await receive_batch(self._reports):
                if 1 <= report.host < self._spec.num_hosts:
                    self._take(self._hosts[report.host - 1], report)
            self._wake()

    def _take(self, host: OtherHost, report: HostReport) -> None:
        if host.is_late(report):
            return
        if report.life != host.life:
            if host.life is not None and host.silence < PRESENT_SECONDS:
                return  # two of one number: the first has it
            self._welcome(host, report)
        if report.address != host.address or host.link is None:
            self._reach(host, report.address)
        host.take(report)

    def _welcome(self, host: OtherHost, report: HostReport) -> None:
        """Another life begins."""
        host.leave(f"host {host.number} was started again")
        host.life, host.refusal = report.life, self._why_not(report)
        if host.refusal is not None:
            logger.error("host %s is refused: %s", host.number, host.refusal)

    def _reach(self, host: OtherHost, address: str) -> None:
        if host.link is not None:
            host.link.close()
        host.address, host.link = address, None
        try:
            host.link = self._links.push(address, HOST_ORDER)
        except OSError as error:
            logger.error("host %s cannot be reached: %s", host.number, error)
        host.tell()

    def _why_not(self, report: HostReport) -> str | None:
        if report.version != VERSION:
            return f"it speaks protocol version {report.version}, and the leading host {VERSION}"
        if report.num_hosts != self._spec.num_hosts:
            return f"it was given --nnodes {report.num_hosts}, and the leading host {self._spec.num_hosts}"
        if report.model != self._spec.model:
            return "its model has another config.json than that of the leading host"
        return None

    async def _tell(self) -> None:
        due = trio.current_time()
        while True:
            held_up = trio.current_time() - due
            for host in self._hosts:
                if held_up > BEAT_SECONDS:
                    host.forgive(held_up)
                if host.life is not None and host.silence > SILENT_SECONDS:
                    logger.error("host %s has not been heard of for %.0f s", host.number, SILENT_SECONDS)
                    host.leave(f"cut off with host {host.number}")
                host.tell()
            self._wake()
            due = trio.current_time() + BEAT_SECONDS
            await trio.sleep_until(due)

    def _wake(self) -> None:
        news, self._news = self._news, trio.Event()
        news.set()
