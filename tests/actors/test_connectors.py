"""What the supervisor does of connectors: who is told what, in which order, over the deaths of both. Without processes:
what keeps them alive, and they themselves, are the test's."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import attrs
import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.connectors import Connector, spec_of
from actors.record import Record
from actors.rest import REST_SECONDS
from protocol.ids import EngineIndex, Epoch
from protocol.kv import KvLayout, KvWindow
from protocol.spec import EngineFacts, EngineSpec, Fault, FromChild, Kv, KvEngine, KvFacts, KvSpec, Ready, ToChild

LAYOUT = KvLayout(b"digest", 16, [64])
FACTS = EngineFacts(2048, 100, 16, 512, "cpu", "float32", 1, 2, kv_layout=LAYOUT)
TEMPLATE = KvSpec(EngineIndex(0), Epoch(0), "", "id", b"k" * 32, 1 << 20)


class FakeProcess:
    """Fulfils actors.running.Running."""

    def __init__(self, spec: KvSpec | None = None) -> None:
        self.spec = spec
        self.told: list[ToChild] = []
        self.may_be_told = trio.Event()
        """Else what is sent to it waits in the pipe."""
        self.may_be_told.set()
        self._say, self._heard = trio.open_memory_channel[FromChild](math.inf)
        self._over = trio.Event()
        self.pid = 7
        self.ended_by_us = False

    async def send(self, message: ToChild) -> None:
        await trio.lowlevel.checkpoint()
        if self._over.is_set():
            raise trio.BrokenResourceError
        await self.may_be_told.wait()
        self.told.append(message)

    async def receive(self) -> FromChild:
        return await self._heard.receive()

    async def wait(self) -> int:
        await self._over.wait()
        return 1

    def say(self, message: FromChild) -> None:
        self._say.send_nowait(message)

    def end(self) -> None:
        self._over.set()
        self._say.close()

    def kill(self) -> None:
        self.end()

    def describe_end(self) -> str:
        return "ended by the test"

    def ended_from_outside(self) -> bool:
        return False

    def is_alive(self) -> bool:
        return not self._over.is_set()

    def is_cut_off(self) -> bool:
        return False

    def ask_for_stacks(self) -> bool:
        return False


@attrs.define
class Kept:
    """A connector that is kept, and the engine beside it."""

    connector: Connector
    engine: Record
    processes: list[FakeProcess] = attrs.field(factory=list)
    """Of the connector, all that there were."""
    starts: bool = True
    """Else the next one cannot be had."""

    @property
    def process(self) -> FakeProcess:
        return self.processes[-1]

    def start_engine(self, epoch: int, layout: KvLayout | None = LAYOUT) -> FakeProcess:
        process = FakeProcess()
        self.engine.begin(Epoch(epoch), process)
        spec = EngineSpec(EngineIndex(0), Epoch(epoch), "", {}, "/m", kv_address=f"engine {epoch}")
        self.connector.engine_came(spec, msgspec.structs.replace(FACTS, kv_layout=layout))
        return process

    def end_engine(self, epoch: int) -> None:
        self.engine.process = None
        self.connector.engine_went(Epoch(epoch))

    def ready(self, epoch: int) -> KvFacts:
        """The connector has a window for the engine of this epoch."""
        spec = self.process.spec
        assert spec is not None
        facts = KvFacts(spec.epoch, Epoch(epoch), spec.inbox_address, KvWindow("/proc/7/fd/3", 8, LAYOUT))
        self.process.say(Ready(facts))
        return facts


@asynccontextmanager
async def open_connector(directory: Path) -> AsyncIterator[Kept]:
    epochs = count(100)
    kept: Kept

    @asynccontextmanager
    async def open_fake(spec: KvSpec, name: str) -> AsyncIterator[FakeProcess]:
        assert name == "kv-0"
        if not kept.starts:
            raise OSError("no memory")
        process = FakeProcess(spec)
        kept.processes.append(process)
        try:
            yield process
        finally:
            process.end()

    async def keep_alive(record, incarnation, give_up) -> None:
        while True:
            try:
                await incarnation()
            except* OSError:
                pass
            if record.cannot_start() or not kept.starts:
                return give_up("kv-0 could not start", record.fault)

    engine = Record("engine-0")
    kept = Kept(Connector(TEMPLATE, engine, lambda: Epoch(next(epochs)), directory, open_fake), engine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.connector.keep, keep_alive)
        await wait_all_tasks_blocked()
        yield kept
        nursery.cancel_scope.cancel()


async def test_each_is_told_of_the_other_once_it_is_up(tmp_path):
    async with open_connector(tmp_path) as kept:
        assert kept.process.told == []
        engine = kept.start_engine(1)
        await wait_all_tasks_blocked()
        assert kept.process.told == [KvEngine(Epoch(1), "engine 1", LAYOUT)]
        assert engine.told == []
        facts = kept.ready(1)
        await wait_all_tasks_blocked()
        assert engine.told == [Kv(facts)]
        assert kept.connector.record.ready


async def test_an_engines_successor_is_told_once_the_connector_knows_it(tmp_path):
    async with open_connector(tmp_path) as kept:
        kept.start_engine(1)
        kept.ready(1)
        await wait_all_tasks_blocked()
        kept.end_engine(1)
        await wait_all_tasks_blocked()
        second = kept.start_engine(2)
        await wait_all_tasks_blocked()
        assert kept.process.told == [
            KvEngine(Epoch(1), "engine 1", LAYOUT),
            KvEngine(Epoch(1)),
            KvEngine(Epoch(2), "engine 2", LAYOUT),
        ]
        assert second.told == []
        facts = kept.ready(2)
        await wait_all_tasks_blocked()
        assert second.told == [Kv(facts)]


async def test_an_engine_is_told_when_its_connector_is_gone_and_when_the_next_one_is_up(tmp_path):
    async with open_connector(tmp_path) as kept:
        engine = kept.start_engine(1)
        first = kept.ready(1)
        await wait_all_tasks_blocked()
        kept.process.end()
        await wait_all_tasks_blocked()
        assert engine.told == [Kv(first), Kv(None)]
        assert len(kept.processes) == 2
        assert kept.process.told == [KvEngine(Epoch(1), "engine 1", LAYOUT)]
        second = kept.ready(1)
        await wait_all_tasks_blocked()
        assert engine.told == [Kv(first), Kv(None), Kv(second)]
        assert second.kv_epoch != first.kv_epoch
        assert second.inbox_address != first.inbox_address


async def test_a_connector_that_begins_is_not_told_of_an_engine_that_is_gone(tmp_path):
    """It is told that there was one, which is nothing to it."""
    async with open_connector(tmp_path) as kept:
        kept.start_engine(1)
        kept.end_engine(1)
        await wait_all_tasks_blocked()
        assert [message.layout for message in kept.process.told if isinstance(message, KvEngine)] == [None]


async def test_what_a_connector_had_for_the_engine_before_is_not_told_to_the_next_one(tmp_path):
    async with open_connector(tmp_path) as kept:
        kept.start_engine(1)
        await wait_all_tasks_blocked()
        kept.end_engine(1)
        second = kept.start_engine(2)
        kept.ready(1)  # said before it heard of that
        await wait_all_tasks_blocked()
        assert second.told == []


async def test_an_engine_that_came_while_the_one_before_was_being_told_is_told_only_its_own(tmp_path):
    """The pipe to the first one was full when it died."""
    async with open_connector(tmp_path) as kept:
        first = kept.start_engine(1)
        facts = kept.ready(1)
        await wait_all_tasks_blocked()
        first.may_be_told = trio.Event()
        kept.process.end()
        await wait_all_tasks_blocked()
        assert first.told == [Kv(facts)]  # and is being told of its end
        kept.end_engine(1)
        second = kept.start_engine(2)
        first.may_be_told.set()
        await wait_all_tasks_blocked()
        assert second.told == []
        facts = kept.ready(2)
        await wait_all_tasks_blocked()
        assert second.told == [Kv(facts)]


async def test_one_of_two_that_came_while_the_first_was_told_of_its_connector_is_not_told_that_it_is_gone(tmp_path):
    async with open_connector(tmp_path) as kept:
        first = kept.start_engine(1)
        first.may_be_told = trio.Event()
        kept.ready(1)
        await wait_all_tasks_blocked()  # it is being told
        kept.end_engine(1)
        second = kept.start_engine(2)
        first.may_be_told.set()
        await wait_all_tasks_blocked()
        assert second.told == []


async def test_who_is_gone_before_it_is_told_is_no_matter(tmp_path):
    async with open_connector(tmp_path) as kept:
        engine = kept.start_engine(1)
        engine.end()
        kept.ready(1)
        await wait_all_tasks_blocked()
        kept.end_engine(1)
        second = kept.start_engine(2)
        facts = kept.ready(2)
        await wait_all_tasks_blocked()
        assert second.told == [Kv(facts)]


async def test_an_engine_whose_blocks_cannot_be_copied_does_without(tmp_path, caplog):
    async with open_connector(tmp_path) as kept:
        with caplog.at_level(logging.WARNING):
            kept.start_engine(1, layout=None)
        await wait_all_tasks_blocked()
        assert kept.process.told == []
        assert "engine-0 has a model whose KV cannot be copied" in caplog.text


async def test_one_that_cannot_start_is_tried_again_after_a_rest_and_the_engine_serves_meanwhile(
    tmp_path, caplog, autojump_clock
):
    async with open_connector(tmp_path) as kept:
        engine = kept.start_engine(1)
        kept.process.say(Fault("the window is smaller than a block"))
        await wait_all_tasks_blocked()
        with caplog.at_level(logging.ERROR):
            kept.process.end()
            await wait_all_tasks_blocked()
        assert "kv-0 could not start: the window is smaller than a block; its engine does without" in caplog.text
        assert not kept.connector.state().is_needed
        assert engine.told == []
        assert len(kept.processes) == 1
        await trio.sleep(REST_SECONDS + 1)
        assert len(kept.processes) == 2
        facts = kept.ready(1)
        await wait_all_tasks_blocked()
        assert engine.told == [Kv(facts)]


async def test_no_memory_for_a_process_ends_nothing(tmp_path, autojump_clock):
    async with open_connector(tmp_path) as kept:
        engine = kept.start_engine(1)
        kept.starts = False
        kept.process.end()
        await trio.sleep(3 * REST_SECONDS)
        assert len(kept.processes) == 1
        kept.starts = True
        with trio.fail_after(2 * REST_SECONDS):
            while len(kept.processes) == 1:  # who says nothing for long is taken to hang
                await trio.sleep(0.1)
        facts = kept.ready(1)
        await wait_all_tasks_blocked()
        assert engine.told == [Kv(facts)]


async def test_what_it_binds_is_its_own_and_is_gone_with_it(tmp_path):
    async with open_connector(tmp_path) as kept:
        first = kept.process.spec
        await trio.Path(first.peer_path).touch()
        kept.process.end()
        await wait_all_tasks_blocked()
        second = kept.process.spec
        assert not await trio.Path(first.peer_path).exists()
        assert first.peer_path != second.peer_path
        assert (first.engine_id, first.key) == (second.engine_id, second.key)


def test_connectors_of_several_engines_share_what_there_is_and_have_names_and_ports_of_their_own():
    template = msgspec.structs.replace(TEMPLATE, disk_path="/d", disk_bytes=100, peer_host="::1", peer_port=70)
    specs = [spec_of(template, EngineIndex(index), 2) for index in range(2)]
    assert [spec.engine_index for spec in specs] == [0, 1]
    assert [spec.window_bytes for spec in specs] == [1 << 19] * 2
    assert [(spec.disk_path, spec.disk_bytes) for spec in specs] == [("/d/engine-0", 50), ("/d/engine-1", 50)]
    assert [spec.peer_port for spec in specs] == [70, 71]
    assert len({spec.engine_id for spec in specs}) == 2
    assert spec_of(template, EngineIndex(0), 1) == template


@pytest.mark.parametrize("number", range(2))
def test_free_ports_are_free_ones(number):
    assert spec_of(TEMPLATE, EngineIndex(number), 2).peer_port == 0
