"""The other hosts as the leading one sees them: who is there, who is refused, and what becomes of their ranks."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.handles import HostsSpec
from actors.hosts.others import OtherHosts
from actors.hosts.remote_rank import RemoteRank
from actors.incarnation import open_incarnation
from actors.record import Record
from protocol.curve import CurveKeys
from protocol.hosts import HostOrder, HostReport, RankReport
from protocol.ids import EngineIndex, Epoch
from protocol.messages import VERSION
from protocol.parallel import ParallelSpec
from protocol.spec import EngineSpec, Fault, Heartbeat, RankFacts, RankSpec, Ready, Start

KEYS = CurveKeys(b"p" * 32, b"s" * 32, [])
BEAT = Heartbeat(1, "step", 0.0)


@attrs.define
class MemoryLink:
    """Both halves of a link."""

    say: trio.MemorySendChannel
    heard: trio.MemoryReceiveChannel

    def send_nowait(self, value: object) -> None:
        self.say.send_nowait(value)

    async def receive(self) -> object:
        return await self.heard.receive()

    def receive_nowait(self) -> object:
        return self.heard.receive_nowait()

    def close(self) -> None:
        self.say.close()


class MemoryLinks:
    """What the leading host binds, and whom it reaches."""

    def __init__(self) -> None:
        self.bound: list[MemoryLink] = []
        self.reached: dict[str, MemoryLink] = {}

    def pull(self, address: str, codec: object) -> MemoryLink:
        self.bound.append(MemoryLink(*trio.open_memory_channel(math.inf)))
        return self.bound[-1]

    def push(self, address: str, codec: object) -> MemoryLink:
        self.reached[address] = MemoryLink(*trio.open_memory_channel(math.inf))
        return self.reached[address]


@attrs.define
class Stage:
    """A leading host of two, and what the other says and is told."""

    hosts: OtherHosts
    links: MemoryLinks
    leader: str = ""
    number: int = 0

    async def says(self, *ranks: RankReport, **changes: object) -> None:
        self.number += 1
        report = HostReport(VERSION, 1, 2, "first", "tcp://b", "model", self.leader, list(ranks), self.number)
        self.links.bound[0].send_nowait(msgspec.structs.replace(report, **changes))
        await wait_all_tasks_blocked()

    async def joins(self) -> None:
        """It speaks, hears, and says so."""
        await self.says()
        self.told()
        await self.says()

    def told(self, address: str = "tcp://b") -> HostOrder:
        """What it was told last."""
        link, last = self.links.reached[address], None
        while True:
            try:
                last = link.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                assert isinstance(last, HostOrder), "nothing"
                self.leader = last.leader
                return last


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    links = MemoryLinks()
    hosts = OtherHosts(HostsSpec(2, "127.0.0.1", 1, KEYS, "model"), links)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hosts.run)
        try:
            yield Stage(hosts, links)
        finally:
            hosts.stop()


@asynccontextmanager
async def open_rank(stage: Stage, epoch: int = 5) -> AsyncIterator[RemoteRank]:
    opened = stage.hosts.open_rank(a_rank(1, epoch), "rank-0.1")
    assert opened is not None
    async with opened as rank:
        yield rank


def a_rank(rank: int, epoch: int = 5) -> RankSpec:
    engine = EngineSpec(EngineIndex(0), Epoch(epoch), "", {}, "/m", parallel=ParallelSpec(2), num_hosts=2)
    return RankSpec(Epoch(epoch), engine, rank)


def told_of(epoch: int = 5, **fields: object) -> RankReport:
    return RankReport(Epoch(epoch), 1, **{"pid": 7, "heartbeat": BEAT} | fields)


async def test_the_first_ranks_are_this_host_s_own_and_nothing_starts_before_all_are_there(autojump_clock):
    async with open_stage() as stage, trio.open_nursery() as nursery:
        assert stage.hosts.open_rank(a_rank(0), "rank-0.0") is None
        began = trio.Event()

        async def begin() -> None:
            await stage.hosts.until_all_there()
            began.set()

        nursery.start_soon(begin)
        await trio.sleep(100)
        assert not began.is_set()
        await stage.joins()
        assert began.is_set()


async def test_nothing_starts_as_long_as_a_host_speaks_and_does_not_hear(autojump_clock, caplog):
    caplog.set_level("INFO")
    async with open_stage() as stage:
        await stage.says()
        with trio.move_on_after(1) as scope:
            await stage.hosts.until_all_there()
        assert scope.cancelled_caught
        assert "waiting for host 1 (which speaks, but does not say that it hears this host) of 2" in caplog.text
        await stage.joins()
        await stage.hosts.until_all_there()


async def test_a_host_that_has_joined_again_has_lost_its_ranks(autojump_clock):
    async with open_stage() as stage:
        await stage.joins()
        async with open_rank(stage) as rank:
            await stage.says(told_of())
            await stage.says(leader="", address="tcp://c")  # we have not missed it, but it has missed us
            assert (rank.describe_end(), rank.ended_from_outside()) == ("cut off with host 1", True)
            assert stage.told("tcp://c").ranks == []


async def test_a_rank_is_as_its_host_says_and_is_ordered_as_long_as_it_is_wanted(autojump_clock):
    async with open_stage() as stage:
        await stage.says()
        async with open_rank(stage) as rank:
            assert [order.spec.rank for order in stage.told().ranks] == [1]
            assert rank.ask_for_stacks()
            assert [order.num_stacks for order in stage.told().ranks] == [1]
            await stage.says(told_of())
            await stage.says(told_of(is_ready=True, heartbeat_age=9.0))  # an old one says nothing new
            await stage.says(told_of(is_ready=True, fault="no", lost_rank=0, end="exited with status 1"))
            heard = [await rank.receive() for _ in range(4)]
            assert heard == [BEAT, Ready(RankFacts()), BEAT, Fault("no", 0)]
            with pytest.raises(trio.EndOfChannel):
                await rank.receive()
            assert rank.describe_end() == "exited with status 1, on host 1"
            assert (rank.pid, rank.ended_by_us, rank.is_alive(), rank.ended_from_outside()) == (7, False, False, False)
            assert stage.told().ranks == []
            await rank.send(Start(1, rank.spec))  # goes nowhere, and breaks nothing
            await stage.says()


async def test_what_nobody_could_make_sense_of_is_not_handed_on(autojump_clock):
    async with open_stage() as stage:
        await stage.says()
        async with open_rank(stage) as rank:
            stage.told()
            for is_ready in (True, False, True):  # the second one comes late
                await stage.says(told_of(heartbeat=None, is_ready=is_ready))
            await stage.says(told_of(heartbeat=None, fault="no", lost_rank=2))
            await stage.says(told_of(heartbeat=None, fault="none", lost_rank=-1, end="gone"))
            assert [await rank.receive() for _ in range(3)] == [Ready(RankFacts()), Fault("no"), Fault("none")]
            with pytest.raises(trio.EndOfChannel):
                await rank.receive()


async def test_a_host_that_is_cut_off_has_lost_its_ranks_which_is_not_their_fault(autojump_clock):
    async with open_stage() as stage:
        await stage.says()
        async with open_rank(stage) as rank:
            stage.told()
            await stage.says(told_of())
            began = trio.current_time()
            await rank.wait()
            assert 10 <= trio.current_time() - began <= 12
            assert (rank.describe_end(), rank.ended_from_outside()) == ("cut off with host 1", True)
        with trio.move_on_after(100) as scope:
            await stage.hosts.until_all_there()
        assert scope.cancelled_caught
        await stage.joins()  # it is back, and the same as before
        await stage.hosts.until_all_there()


async def test_a_rank_is_not_blamed_for_what_nobody_can_hear(autojump_clock):
    async with open_stage() as stage:
        await stage.says()
        opened, record = stage.hosts.open_rank(a_rank(1), "rank-0.1"), Record("rank-0.1")
        async with open_incarnation(record, a_rank(1), opened) as facts:
            with pytest.raises(trio.EndOfChannel):
                await facts.receive()
        assert record.last_end == "cut off with host 1"
        assert record.ended_from_outside
        assert (record.has_hung, record.fault) == (False, None)


async def test_a_rank_that_is_killed_is_cut_off_where_nothing_is_heard_of_its_host(autojump_clock):
    async with open_stage() as stage:
        for silence, end in ((0, "killed on host 1"), (4, "cut off with host 1")):
            await stage.says()
            async with open_rank(stage) as rank:
                await trio.sleep(silence)
                rank.kill()
                assert (rank.describe_end(), rank.ended_from_outside()) == (end, silence > 0)
                assert rank.ended_by_us


async def test_a_host_that_was_started_again_is_another_one(autojump_clock):
    async with open_stage() as stage:
        await stage.says()
        async with open_rank(stage) as rank:
            stage.told()
            await stage.says(told_of())
            await stage.says(life="second", address="tcp://c")  # while the first one is heard of
            assert rank.is_alive()
            await trio.sleep(4)
            await stage.says(life="second", address="tcp://c")
            assert (rank.describe_end(), rank.ended_from_outside()) == ("host 1 was started again", True)
            order = stage.told("tcp://c")
            assert (order.life, order.ranks) == ("second", [])


async def test_ranks_of_another_leading_host_are_nobody_s(autojump_clock):
    async with open_stage() as stage:
        await stage.says()
        async with open_rank(stage) as rank:
            await stage.says(told_of(end="killed"), leader="somebody else")
            assert rank.is_alive()


async def test_it_is_not_waited_for_long_that_a_host_lets_go_of_a_rank(autojump_clock):
    async with open_stage() as stage:
        await stage.says()
        async with open_rank(stage):
            stage.told()
            await stage.says(told_of())
            began = trio.current_time()
        assert trio.current_time() - began == 3
        async with trio.open_nursery() as nursery, open_rank(stage, 6):
            await stage.says(told_of(6))
            began = trio.current_time()
            nursery.start_soon(stage.says)
        assert trio.current_time() - began < 1


async def test_who_is_cancelled_lets_its_hosts_know_first(autojump_clock):
    async with open_stage() as stage:
        await stage.says()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_a_rank, stage)
            await wait_all_tasks_blocked()
            assert stage.told().ranks
            await stage.says(told_of())
            nursery.cancel_scope.cancel()
        assert stage.told().ranks == []


async def keep_a_rank(stage: Stage) -> None:
    async with open_rank(stage):
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": VERSION + 1}, f"it speaks protocol version {VERSION + 1}, and the leading host {VERSION}"),
        ({"num_hosts": 3}, "it was given --nnodes 3, and the leading host 2"),
        ({"model": "other"}, "its model has another config.json than that of the leading host"),
    ],
)
async def test_a_host_that_does_not_fit_is_told_why_and_does_not_count(autojump_clock, changes, why):
    async with open_stage() as stage:
        await stage.says(**changes)
        assert stage.told().refusal == why
        with trio.move_on_after(1) as scope:
            await stage.hosts.until_all_there()
        assert scope.cancelled_caught


async def test_a_number_that_no_host_has_is_not_heard(autojump_clock):
    async with open_stage() as stage:
        for number in (-1, 0, 2):
            await stage.says(host=number)
        assert stage.links.reached == {}


async def test_what_comes_late_is_not_heard(autojump_clock):
    async with open_stage() as stage:
        await stage.says()
        stage.told()
        await stage.says(address="tcp://now")
        assert stage.told("tcp://now").leader
        await stage.says(number=1)  # of before the network was cut
        stage.hosts._hosts[0].tell()
        assert stage.told("tcp://now").life == "first"
        await stage.says(life="second", number=1)  # another process counts anew
        await trio.sleep(5)
        await stage.says(life="second", number=2)
        assert stage.told().life == "second"


async def test_each_order_has_a_higher_number_than_the_last_one(autojump_clock):
    async with open_stage() as stage:
        await stage.says()
        first = stage.told().number
        await trio.sleep(3)
        await stage.says()
        assert stage.told().number > first > 0


async def test_a_leading_host_that_was_held_up_blames_nobody(autojump_clock):
    async with open_stage() as stage:
        await stage.says()
        stage.told()
        host = stage.hosts._hosts[0]
        autojump_clock.jump(60)  # as if this process had been stopped
        await trio.sleep(1)
        assert host.life == "first"
        await trio.sleep(12)
        assert host.life is None


async def test_what_was_heard_after_that_counts_from_when_it_was_heard(autojump_clock):
    async with open_stage() as stage:
        await stage.says()
        stage.told()
        autojump_clock.jump(60)
        await stage.says()  # read before anybody has looked how long nothing came
        await trio.sleep(1)
        assert 0 <= stage.hosts._hosts[0].silence <= 2
        await trio.sleep(12)
        assert stage.hosts._hosts[0].life is None
