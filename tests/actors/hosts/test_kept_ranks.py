"""The ranks that a host keeps: real processes, which start and end as orders say, and what is told of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from actors import process, record
from actors.hosts.kept_ranks import KeptRanks
from protocol.hosts import RankOrder, RankReport
from protocol.ids import EngineIndex, Epoch
from protocol.parallel import ParallelSpec
from protocol.spec import EngineSpec, LoadFormat, RankSpec
from tests.helpers.processes import is_gone

pytestmark = pytest.mark.process


def order(epoch: int) -> RankOrder:
    engine = EngineSpec(EngineIndex(0), Epoch(epoch), "", {}, "/m", LoadFormat.DUMMY, parallel=ParallelSpec(2))
    return RankOrder(RankSpec(Epoch(epoch), engine, 1))


@attrs.define(eq=False)
class Host:
    ranks: KeptRanks
    news: trio.Event

    async def until(self, is_so: Callable[[RankReport], bool]) -> RankReport:
        """The report on its only rank. A test's own limit is the bound."""
        while not is_so(report := self.ranks.reports()[0]):
            with trio.move_on_after(0.05):
                await self.news.wait()
        return report


@asynccontextmanager
async def open_host() -> AsyncIterator[Host]:
    async with trio.open_nursery() as nursery:

        def changed() -> None:
            host.news.set()
            host.news = trio.Event()

        host = Host(KeptRanks(nursery, lambda spec: spec, changed), trio.Event())
        yield host
        nursery.cancel_scope.cancel()


async def test_a_rank_lives_as_long_as_it_is_wanted_and_is_not_started_again_after_its_end():
    async with open_host() as host:
        host.ranks.keep([order(1)])
        pid = (await host.until(lambda report: report.is_ready)).pid
        os.kill(pid, signal.SIGKILL)
        report = await host.until(lambda report: report.end is not None)
        assert (report.end, report.pid, report.heartbeat, report.fault) == ("killed by SIGKILL", 0, None, None)
        host.ranks.keep([order(1)])
        assert host.ranks.reports()[0].end == "killed by SIGKILL"

        host.ranks.keep([order(2)])
        pid = (await host.until(lambda report: report.is_ready)).pid
        host.ranks.keep([])
        assert host.ranks.reports() == []
    assert is_gone(pid)


async def test_a_rank_that_waits_for_the_end_of_one_before_is_well(monkeypatch):
    monkeypatch.setattr(process, "ASK_SECONDS", 0.3)
    monkeypatch.setattr(process, "TERMINATE_SECONDS", 0.3)
    async with open_host() as host:
        host.ranks.keep([order(1)])
        old = (await host.until(lambda report: report.is_ready)).pid
        os.kill(old, signal.SIGSTOP)
        host.ranks.keep([order(2)])
        await trio.sleep(0.2)
        report = host.ranks.reports()[0]
        assert not is_gone(old)
        assert (report.epoch, report.pid, report.heartbeat_age) == (2, 0, 0)
        assert report.heartbeat is not None
        assert report.heartbeat.phase_age > 0.1
        await host.until(lambda report: report.pid != 0)
        assert is_gone(old)


async def test_a_rank_that_hangs_is_ended_and_has_not_said_that_it_cannot_start(monkeypatch):
    monkeypatch.setattr(record, "SILENT_TICKS", 1)
    async with open_host() as host:
        host.ranks.keep([order(1)])
        os.kill((await host.until(lambda report: report.pid != 0)).pid, signal.SIGSTOP)
        report = await host.until(lambda report: report.end is not None)
        assert report.end == "killed by SIGKILL, since it has not been heard of for 1 s"
        assert (report.fault, report.ended_from_outside) == (None, False)


async def test_where_no_process_is_to_be_had_that_is_an_end_and_no_fault(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/none")
    async with open_host() as host:
        host.ranks.keep([order(1)])
        report = await host.until(lambda report: report.end is not None)
        assert report.end == "not started: [Errno 2] No such file or directory: '/none'"
        assert report.fault is None
