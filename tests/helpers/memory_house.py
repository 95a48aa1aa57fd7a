"""The actors without processes: their mains as tasks over memory channels, around the dummy runner.

Fulfils actors.handles.House, so that whatever runs over the real actors runs over this in virtual time. A test may
replace `wire` to lose, double or delay what the engine publishes, and may kill the actors.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import msgspec
import trio

from actors.control import Pulse
from actors.engine.main import make_engine
from actors.engine.stepper import InlineStepper
from actors.handles import ActorState, EngineLost, EventOutlet, HouseEvent, HouseFailed, OutputLost
from actors.output.main import OutputHandler
from actors.output.processor import OutputProcessor
from actors.output.vocabulary import load_vocabulary
from gpu.fake_runner import FakeRunner
from protocol.ids import ClientIndex, EngineIndex, Epoch
from protocol.links import FrameTooLargeError, Inbox, Outbox
from protocol.messages import AttachEngine, EngineCoreOutputs, EngineInput, EngineOutput, OutputInput
from protocol.sampling import Grammar, GrammarSource
from protocol.spec import EngineFacts, EngineSpec, LoadFormat
from protocol.step import StepPlan, StepResult
from tests.helpers.grammars import checker
from tests.helpers.memory_connectors import MemoryConnectors

CLIENT = ClientIndex(0)
ENGINE = EngineIndex(0)

Wire = Callable[[EngineOutput, Callable[[EngineOutput], None]], None]
"""Given what the engine publishes, calls the function with what arrives."""


def straight(message: EngineOutput, deliver: Callable[[EngineOutput], None]) -> None:
    deliver(message)


class MemoryClient:
    """The engine's side of one client's output socket. Nobody subscribed: what is sent is lost, as with ZMQ."""

    def __init__(self, house: MemoryHouse) -> None:
        self._house = house
        self._say, self._hear = trio.open_memory_channel[bool](math.inf)
        self._deliver: Callable[[EngineOutput], None] | None = None

    def send_nowait(self, value: EngineOutput) -> None:
        most = self._house.max_frame_items
        if most is not None and isinstance(value, EngineCoreOutputs) and len(value.outputs) > most:
            raise FrameTooLargeError
        if self._deliver is not None:
            self._house.wire(value, self._deliver)

    async def receive(self) -> bool:
        return await self._hear.receive()

    @contextmanager
    def subscribed(self) -> Iterator[Inbox[EngineOutput]]:
        say, hear = trio.open_memory_channel[EngineOutput](math.inf)
        self._deliver = say.send_nowait
        self._say.send_nowait(True)
        try:
            yield hear
        finally:
            self._deliver = None
            self._say.send_nowait(False)


@attrs.define(eq=False)
class MemoryEngine:
    """An engine that runs: the ways to it, and what it learnt."""

    epoch: Epoch
    inputs: Outbox[EngineInput]
    client: MemoryClient
    facts: EngineFacts


class MemoryHouse:
    """Made by `open_memory_house`."""

    def __init__(
        self, checkpoint: Path, spec: EngineSpec, num_engines: int = 1, connectors: MemoryConnectors | None = None
    ) -> None:
        self._app = EventOutlet()
        self._vocabulary = load_vocabulary(checkpoint)
        self._spec = spec
        self._epoch = 0
        self._indices = [EngineIndex(index) for index in range(num_engines)]
        self._engines: dict[EngineIndex, MemoryEngine] = {}
        self._output: Outbox[OutputInput] | None = None
        self.kills_from_outside = False
        """Whether an engine that is killed has done nothing to deserve it."""
        self._scopes: dict[str, trio.CancelScope] = {}
        self.wire: Wire = straight
        self.open_runner: Callable[[EngineSpec], FakeRunner] = FakeRunner
        """Of the next engine."""
        self.max_frame_items: int | None = None
        """The boundary that a real link has in bytes."""
        self.engine_inputs: list[EngineInput] = []
        """Everything that was sent to an engine, by the app or by the output handler."""
        self.engine_up = trio.Event()
        self.silent: set[str] = set()
        """Actors that have not been heard of for long."""
        self.connectors = connectors
        """Of the engines; None: they have none."""

    # ------------------------------------------------------------------ House

    def listen(self, take: Callable[[HouseEvent], None]) -> None:
        self._app.listen(take)

    def engine_facts(self, index: EngineIndex, epoch: Epoch) -> EngineFacts | None:
        engine = self._engines.get(index)
        return engine.facts if engine is not None and engine.epoch == epoch else None

    def send_to_engine(self, index: EngineIndex, message: EngineInput) -> bool:
        engine = self._engines.get(index)
        if engine is None or message.epoch != engine.epoch:
            return False
        engine.inputs.send_nowait(message)
        return True

    def send_to_output(self, message: OutputInput) -> bool:
        if self._output is None:
            return False
        self._output.send_nowait(message)
        return True

    async def check_grammar(self, source: GrammarSource) -> Grammar:
        await trio.lowlevel.checkpoint()
        return checker().check(source)

    def states(self) -> list[ActorState]:
        return [*(self._state(engine_name(index), index) for index in self._indices), self._state("output-0")]

    def _state(self, name: str, index: EngineIndex | None = None) -> ActorState:
        return ActorState(
            name=name,
            epoch=Epoch(self._epoch),
            pid=None,
            ready=name in self._scopes,
            phase="serve",
            phase_seconds=0.0,
            heartbeat_age=7.0 if name in self.silent else 0.0,
            progress=1.0,
            restarts=0,
            last_end=None,
            engine_index=index,
        )

    # ------------------------------------------------------------------ lives and deaths

    async def run_engine(self, index: EngineIndex = ENGINE) -> None:
        """One incarnation, until it is killed."""
        epoch, name = self._new_epoch(), engine_name(index)
        own = msgspec.structs.replace(self._spec, dummy_step_seconds=0.0)
        stepper = TimedStepper(InlineStepper(self.open_runner(own)), self._spec.dummy_step_seconds)
        client = MemoryClient(self)
        say, inbox = trio.open_memory_channel[EngineInput](math.inf)
        spec = msgspec.structs.replace(self._spec, epoch=epoch, engine_index=index)
        layout = stepper.facts.kv_layout
        kv = None if self.connectors is None else self.connectors.engine_came(index, epoch, layout)
        engine = make_engine(spec, stepper, {CLIENT: client}, Pulse(), clock=trio.current_time, kv=kv)
        with trio.CancelScope() as scope:
            self._scopes[name] = scope
            self._engines[index] = MemoryEngine(epoch, Recorder(self, say), client, stepper.facts)
            self.send_to_output(self._attachment(index))
            self.engine_up.set()
            try:
                await engine.run(inbox)
            finally:
                del self._engines[index]
                self.engine_up = trio.Event()
                del self._scopes[name]
                if self.connectors is not None:
                    self.connectors.engine_went(index)
        self._app.send_nowait(EngineLost(index, epoch, "killed by the test", self.kills_from_outside))

    async def run_output(self) -> None:
        """One incarnation, until it is killed."""
        say, inbox = trio.open_memory_channel[OutputInput](math.inf)
        handler = OutputHandler(CLIENT, lambda: OutputProcessor(self._vocabulary), self._app, self._attach, Pulse())
        with trio.CancelScope() as scope:
            self._scopes["output-0"] = scope
            self._output = say
            for index in self._engines:
                self.send_to_output(self._attachment(index))
            try:
                await handler.run(inbox)
            finally:
                self._output = None
                del self._scopes["output-0"]
        self._app.send_nowait(OutputLost("killed by the test"))

    def is_running(self, name: str) -> bool:
        return name in self._scopes

    def kill(self, name: str) -> None:
        self._scopes[name].cancel()

    def give_up(self, reason: str) -> None:
        self._app.send_nowait(HouseFailed(reason))

    def _attachment(self, index: EngineIndex) -> AttachEngine:
        return AttachEngine(index, self._engines[index].epoch, "memory", "memory")

    @contextmanager
    def _attach(self, message: AttachEngine) -> Iterator[tuple[Inbox[EngineOutput], Outbox[EngineInput]]]:
        engine = self._engines.get(message.engine_index)
        if engine is None or message != self._attachment(message.engine_index):
            say, hear = trio.open_memory_channel[EngineOutput](0)  # it is gone again: nothing will ever come
            with say, hear:
                yield hear, Nowhere()
            return
        with engine.client.subscribed() as inbox:
            yield inbox, engine.inputs

    def _new_epoch(self) -> Epoch:
        self._epoch += 1
        return Epoch(self._epoch)


class TimedStepper:
    """Steps that take a while, of virtual time."""

    def __init__(self, stepper: InlineStepper, seconds: float) -> None:
        self._stepper = stepper
        self._seconds = seconds
        self.facts = stepper.facts

    def submit(self, plan: StepPlan) -> None:
        self._stepper.submit(plan)

    async def result(self) -> StepResult:
        if self._seconds:
            await trio.sleep(self._seconds)
        return await self._stepper.result()

    async def apply(self, action):
        return await self._stepper.apply(action)

    async def beside(self, action):
        return await self._stepper.beside(action)


class Recorder:
    """An outbox to the engine that remembers what went through it."""

    def __init__(self, house: MemoryHouse, outbox: Outbox[EngineInput]) -> None:
        self._house = house
        self._outbox = outbox

    def send_nowait(self, value: EngineInput) -> None:
        self._house.engine_inputs.append(value)
        self._outbox.send_nowait(value)


class Nowhere:
    """An outbox to an engine that is gone."""

    def send_nowait(self, value: EngineInput) -> None:
        pass


def dummy_engine_spec(checkpoint: Path, **fields: object) -> EngineSpec:
    """A spec of the dummy runner; keyword arguments replace its fields."""
    spec = EngineSpec(ENGINE, Epoch(0), "", {CLIENT: ""}, str(checkpoint), load_format=LoadFormat.DUMMY)
    return msgspec.structs.replace(spec, **fields)


def engine_name(index: EngineIndex) -> str:
    return f"engine-{index}"


@asynccontextmanager
async def open_memory_house(
    checkpoint: Path, num_engines: int = 1, connectors: MemoryConnectors | None = None, **fields: object
) -> AsyncIterator[MemoryHouse]:
    """A house whose actors run; a killed one is started again by the test, with `run_engine` or `run_output`."""
    house = MemoryHouse(checkpoint, dummy_engine_spec(checkpoint, **fields), num_engines, connectors)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.run_output)
        for index in range(num_engines):
            nursery.start_soon(house.run_engine, EngineIndex(index))
        yield house
        nursery.cancel_scope.cancel()
