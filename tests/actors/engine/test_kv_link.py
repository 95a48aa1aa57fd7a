"""The engine's main and its connector, over memory channels in virtual time."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from actors.control import Pulse
from actors.engine.kv_link import KvAccess
from actors.engine.main import make_engine
from actors.engine.stepper import InlineStepper
from gpu.fake_runner import FakeRunner
from protocol.ids import ClientIndex, Epoch
from protocol.kv import BlockHash, KvInput, KvParams, KvWindow
from protocol.messages import EngineCoreOutput, EngineCoreOutputs, EngineOutput, UtilityReply, UtilityRequest
from protocol.operations import CacheReset, ResetPrefixCache
from protocol.spec import Kv, KvFacts
from tests.helpers.memory_connector import MemoryConnector
from tests.helpers.memory_house import dummy_engine_spec
from tests.helpers.scheduling import a_request

PROMPT = list(range(100, 140))
"""Two full blocks of 16 tokens, and more."""


class ToConnector:
    """The engine's way to it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def send_nowait(self, value: KvInput) -> None:
        self._world.heard.append(value)
        self._world.connector.hear(value)
        self._world.flush()

    def close(self) -> None:
        """Another one is made for the next connector."""


class World:
    """An engine with one client, and what a test says to it as its connector and supervisor."""

    def __init__(self, checkpoint: Path, disk: dict[BlockHash, bytes] | None = None) -> None:
        self.spec = msgspec.structs.replace(dummy_engine_spec(checkpoint, epoch=1), kv_address="memory")
        self.runner = FakeRunner(self.spec)
        self.disk = {} if disk is None else disk
        self.announce, announced = trio.open_memory_channel(math.inf)
        self.say, inbox = trio.open_memory_channel(math.inf)
        self.ask, self.requests = trio.open_memory_channel(math.inf)
        self.outputs: list[EngineCoreOutput] = []
        self.replies: list[UtilityReply] = []
        self.connector: MemoryConnector | None = None
        self.answers = True
        self.heard: list[KvInput] = []
        access = KvAccess(Epoch(1), announced, inbox, lambda address: ToConnector(self))
        stepper = InlineStepper(self.runner)
        self.engine = make_engine(self.spec, stepper, {0: self}, Pulse(), clock=trio.current_time, kv=access)
        self._coming = iter([True])

    # As the client's outbox.

    def send_nowait(self, value: EngineOutput) -> None:
        match value:
            case EngineCoreOutputs():
                self.outputs += value.outputs
            case UtilityReply():
                self.replies.append(value)

    async def receive(self) -> bool:
        for subscribed in self._coming:
            return subscribed
        await trio.sleep_forever()
        raise AssertionError

    # As the connector and the supervisor.

    def flush(self) -> None:
        if self.answers:
            self.connector.answer_all()
        said, self.connector.said = self.connector.said, []
        for message in said:
            self.say.send_nowait(message)

    def connect(self, kv_epoch: int = 7, window: KvWindow | None = None) -> None:
        """It says that there is room before it is announced."""
        self.connector = MemoryConnector(self.runner.facts.kv_layout, 16, kv_epoch, self.disk)
        self.flush()
        facts = KvFacts(Epoch(kv_epoch), Epoch(1), "memory", window or self.connector.window.described())
        self.announce.send_nowait(Kv(facts))

    def texts(self, request_id: str) -> list[int]:
        return [token for output in self.outputs if output.request_id == request_id for token in output.new_token_ids]


@asynccontextmanager
async def running(checkpoint: Path, disk: dict[BlockHash, bytes] | None = None) -> AsyncIterator[World]:
    world = World(checkpoint, disk)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.engine.run, world.requests)
        yield world
        nursery.cancel_scope.cancel()


async def test_one_engine_finds_what_another_has_saved(checkpoint: Path, autojump_clock: object):
    async with running(checkpoint) as first:
        first.connect()
        first.ask.send_nowait(a_request("a", PROMPT))
        await trio.sleep(1)
        assert len(first.texts("a")) == 5
        assert len(first.disk) == 2
    async with running(checkpoint, first.disk) as second:
        second.ask.send_nowait(a_request("a", PROMPT))
        await trio.sleep(1.5)
        assert not second.outputs, "a connector is expected"
        second.connect()
        await trio.sleep(0.1)
        assert second.texts("a") == first.texts("a")
        assert second.outputs[0].num_cached_tokens == 32
        assert not second.connector.found


async def test_a_silent_connector_costs_its_time_once(checkpoint: Path, autojump_clock: object):
    async with running(checkpoint) as world:
        world.answers = False
        world.connect()
        for name in ("a", "b"):
            begin = trio.current_time()
            world.ask.send_nowait(a_request(name, PROMPT if name == "a" else PROMPT[1:]))
            while not world.texts(name):
                await trio.sleep(0.05)
            took = trio.current_time() - begin
            assert 5.4 < took < 5.7 if name == "a" else took < 0.1


async def test_it_dies_and_comes_again(checkpoint: Path, autojump_clock: object):
    async with running(checkpoint) as world:
        world.answers = False
        world.connect()
        world.ask.send_nowait(a_request("a", PROMPT))
        await trio.sleep(1)
        assert not world.outputs
        world.announce.send_nowait(Kv(None))
        await trio.sleep(0.01)
        assert len(world.texts("a")) == 5
        world.answers = True
        world.connect(kv_epoch=9)
        await trio.sleep(1)
        assert len(world.disk) == 2, "the next one is given what the pool has"


async def test_who_waits_for_a_ticket_has_it_though_nobody_says_a_word(checkpoint: Path, autojump_clock: object):
    async with running(checkpoint) as world:
        world.connect()
        await trio.sleep(0.1)
        world.answers = False
        world.connector.grant(4)
        world.flush()
        request = a_request("a", PROMPT[:16], kv=KvParams(hands_over=True))
        world.ask.send_nowait(request)
        await trio.sleep(4)
        assert world.connector.exports
        assert not world.outputs
        await trio.sleep(2)
        assert [output.kv_ticket for output in world.outputs] == [b""]


async def test_the_log_tells_how_much_there_is_room_for(checkpoint: Path, autojump_clock: object, caplog):
    caplog.set_level(logging.INFO)
    async with running(checkpoint) as world:
        world.connect()
        await trio.sleep(0.1)
        assert f"its KV connector is there, with 0.00 GiB for {world.connector.window.num_frames} blocks" in caplog.text


async def test_a_window_that_is_gone_is_done_without(checkpoint: Path, autojump_clock: object):
    async with running(checkpoint) as world:
        gone = KvWindow("/proc/self/fd/9999", 16, world.runner.facts.kv_layout)
        world.connect(window=gone)
        world.ask.send_nowait(a_request("a", PROMPT))
        await trio.sleep(0.1)
        assert len(world.texts("a")) == 5
        assert not world.heard


async def test_what_other_incarnations_say_is_not_heard(checkpoint: Path, autojump_clock: object):
    async with running(checkpoint) as world:
        world.connect()
        await trio.sleep(0.1)
        other = MemoryConnector(world.runner.facts.kv_layout, 16, kv_epoch=3)
        other.grant(9)
        world.say.send_nowait(other.said[0])
        world.say.send_nowait(msgspec.structs.replace(other.said[0], epoch=Epoch(5), kv_epoch=Epoch(7)))
        facts = KvFacts(Epoch(8), Epoch(5), "memory", other.window.described())
        world.announce.send_nowait(Kv(facts))
        world.ask.send_nowait(a_request("a", PROMPT))
        await trio.sleep(1)
        world.connector.check()
        assert world.connector.num_saved == 2


@pytest.mark.parametrize("answers", [True, False])
async def test_a_reset_is_answered_when_the_connector_has_done_it(
    checkpoint: Path, autojump_clock: object, answers: bool
):
    async with running(checkpoint) as world:
        world.connect()
        world.ask.send_nowait(a_request("a", PROMPT))
        await trio.sleep(1)
        assert world.disk
        if not answers:
            world.flush = lambda: None
        operation = ResetPrefixCache(reset_running_requests=True, reset_external=True)
        world.ask.send_nowait(UtilityRequest(Epoch(1), ClientIndex(0), 4, operation))
        await trio.sleep(5)
        assert [reply.result for reply in world.replies] == [CacheReset(answers)]
        assert not world.disk
