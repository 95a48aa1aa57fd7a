"""A rank that another host keeps, as the supervisor sees it: what that host last said of it, as if it were a child.

Fulfils actors.running.Running. Pure but for its channel; actors/hosts/others hears and speaks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import trio

from protocol.hosts import BEAT_SECONDS, RankOrder, RankReport
from protocol.spec import Fault, FromChild, RankFacts, RankSpec, Ready, ToChild

FRESH_SECONDS = 2 * BEAT_SECONDS
"""A heartbeat that came to its host longer ago says nothing new: reports come as often as heartbeats."""


@final
class RemoteRank:
    """Of one incarnation."""

    def __init__(self, spec: RankSpec, host: int, is_cut_off: Callable[[], bool], tell: Callable[[], None]) -> None:
        """`is_cut_off`: whether nothing is heard of its host. `tell` lets its host know what is wanted of the rank."""
        self.spec = spec
        self.gone = trio.Event()
        """Its host knows that it is not wanted any more, or is gone itself."""
        self._host = host
        self._is_cut_off = is_cut_off
        self._tell = tell
        self._num_stacks = 0
        self._is_ready = False
        self._last = RankReport(spec.epoch, spec.rank)
        self._end: str | None = None
        self._from_outside = False
        self._ended_by_us = False
        self._say, self._heard = trio.open_memory_channel[FromChild](math.inf)
        self._ended = trio.Event()

    # ------------------------------------------------------------------ for its host's side

    def order(self) -> RankOrder | None:
        """What its host is to do; None: not to have it."""
        return None if self._ended.is_set() else RankOrder(self.spec, self._num_stacks)

    def take(self, report: RankReport) -> None:
        """What its host says of it now."""
        last, self._last = self._last, report
        if self._ended.is_set():
            return
        if report.heartbeat is not None and report.heartbeat_age < FRESH_SECONDS:
            self._say.send_nowait(report.heartbeat)
        if report.is_ready and not self._is_ready:  # nobody takes it twice
            self._is_ready = True
            self._say.send_nowait(Ready(RankFacts()))
        if report.fault is not None and report.fault != last.fault:
            lost_rank = report.lost_rank
            is_one = lost_rank is not None and 0 <= lost_rank < self.spec.engine.parallel.world
            self._say.send_nowait(Fault(report.fault, lost_rank if is_one else None))
        if report.end is not None:
            self.lose(f"{report.end}, on host {self._host}", report.ended_from_outside)

    def lose(self, how: str, from_outside: bool) -> None:
        """It has ended, or is of no use any more."""
        if not self._ended.is_set():
            self._end, self._from_outside = how, from_outside
            self._ended.set()
            self._say.close()
            self._tell()

    # ------------------------------------------------------------------ actors.running.Running

    @property
    def pid(self) -> int:
        """On its host."""
        return self._last.pid

    @property
    def ended_by_us(self) -> bool:
        return self._ended_by_us

    async def send(self, message: ToChild) -> None:
        """Nothing: its host has weights of its own, and stops it when it is no longer wanted."""
        await trio.lowlevel.checkpoint()

    async def receive(self) -> FromChild:
        return await self._heard.receive()

    async def wait(self) -> int:
        await self._ended.wait()
        return 0

    def describe_end(self) -> str:
        return self._end or "still running"

    def ended_from_outside(self) -> bool:
        return self._from_outside

    def is_alive(self) -> bool:
        return not self._ended.is_set()

    def is_cut_off(self) -> bool:
        return self._is_cut_off()

    def ask_for_stacks(self) -> bool:
        if self._ended.is_set() or self._is_cut_off():
            return False
        self._num_stacks += 1
        self._tell()
        return True

    def kill(self) -> None:
        """It is nobody's fault that a network is cut."""
        if not self._ended.is_set():
            is_cut_off = self._is_cut_off()
            self._ended_by_us = True
            self.lose(f"cut off with host {self._host}" if is_cut_off else f"killed on host {self._host}", is_cut_off)
