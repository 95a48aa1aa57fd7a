"""One nursery owns every process: starts each actor, hears it, notices its death at once, starts it again.

Liveness never comes from a socket. Death is the end of the control pipe and of the process; what the actors say of
themselves (heartbeats, readiness) comes over the control pipe too.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import assert_never, final

import attrs
import msgspec
import trio

from actors.grammar_desk import GrammarDesk
from actors.handles import ActorState, EngineLost, EventOutlet, HouseEvent, HouseFailed, HouseSpec, OutputLost
from actors.process import ChildProcess, open_process
from actors.record import Record
from actors.restart_policy import RestartPolicy
from actors.standby import Standby
from protocol.codec import APP_INPUT, ENGINE_INPUT, OUTPUT_INPUT
from protocol.ids import FIRST_CLIENT, EngineIndex, Epoch
from protocol.links import Links, ReceiveLink, SendLink, receive_batch
from protocol.messages import AppInput, AttachEngine, EngineInput, OutputInput
from protocol.sampling import Grammar, GrammarSource
from protocol.spec import (
    ActorSpec,
    EngineFacts,
    EngineSpec,
    Fault,
    GrammarChecked,
    GrammarFacts,
    Heartbeat,
    OutputFacts,
    OutputSpec,
    Ready,
    StandbyFacts,
    Weights,
    WeightsFacts,
    WeightsSpec,
)

END_SECONDS = 5.0
"""After an actor has closed its control pipe, how long until it is no longer waited for but stopped."""

WEIGHTS_SECONDS = 300.0
"""How long an engine waits for the weights actor, over all its incarnations, beside the time that the checkpoint's size
takes at a slow rate (gpu/shared_weights); after that it loads by itself."""

REST_SECONDS = 60.0
"""How long an engine that died too often is let alone, if there are others."""

WEIGHTS = "weights-0"
WEIGHTS_NICE = 5
"""Most often it only looks whether a file is there, while those that are to serve are importing."""

logger = logging.getLogger("trillm.supervisor")

Facts = EngineFacts | OutputFacts | WeightsFacts


@final
class EngineUp:
    """An engine incarnation that serves: where it listens, and the app's link to it."""

    def __init__(self, spec: EngineSpec, facts: EngineFacts, link: SendLink[EngineInput]) -> None:
        self.spec = spec
        self.facts = facts
        self.link = link

    def attach(self) -> AttachEngine:
        spec = self.spec
        return AttachEngine(spec.engine_index, spec.epoch, spec.requests_address, spec.outputs_addresses[FIRST_CLIENT])


@final
class Supervisor:
    """Fulfils actors.handles.House."""

    def __init__(self, spec: HouseSpec, directory: Path, links: Links) -> None:
        self._spec = spec
        self._directory = directory
        self._links = links
        self._app = EventOutlet()
        self._epoch = 0
        self._is_over = False
        """An actor that is needed cannot be had."""
        self._desk = GrammarDesk(spec.engine.checkpoint, self._new_epoch)
        self._standby = Standby(self._new_epoch, self._are_idle) if spec.has_standby else None
        self._engines: dict[EngineIndex, EngineUp] = {}
        self._output: SendLink[OutputInput] | None = None
        self._weights: Weights | None = None
        """What engines are told of the weights actor; None as long as they are to wait."""
        self._engine_names = [f"engine-{index}" for index in range(spec.num_engines)]
        self._engine_indices = {name: EngineIndex(index) for index, name in enumerate(self._engine_names)}
        names = [*self._engine_names, "output-0", *([WEIGHTS] if spec.shares_weights else [])]
        self._records = {name: Record(name) for name in names}

    # ------------------------------------------------------------------ for the app (actors.handles.House)

    def listen(self, take: Callable[[HouseEvent], None]) -> None:
        self._app.listen(take)

    def engine_facts(self, index: EngineIndex, epoch: Epoch) -> EngineFacts | None:
        up = self._engines.get(index)
        return up.facts if up and up.spec.epoch == epoch else None

    def send_to_engine(self, index: EngineIndex, message: EngineInput) -> bool:
        up = self._engines.get(index)
        if up is None or up.spec.epoch != message.epoch:
            return False
        up.link.send_nowait(message)
        return True

    def send_to_output(self, message: OutputInput) -> bool:
        if self._output is None:
            return False
        self._output.send_nowait(message)
        return True

    async def check_grammar(self, source: GrammarSource) -> Grammar:
        return await self._desk.check(source)

    def states(self) -> list[ActorState]:
        states = [
            attrs.evolve(
                record.state(),
                is_needed=name != WEIGHTS or not self._any_engine_ready(),
                engine_index=self._engine_indices.get(name),
            )
            for name, record in self._records.items()
        ]
        return states if self._standby is None else [*states, self._standby.state()]

    def _are_idle(self) -> bool:
        return all(self._records[name].heartbeat.phase == "idle" for name in self._engine_names)

    def _all_engines_ready(self) -> bool:
        return all(self._records[name].ready for name in self._engine_names)

    def _any_engine_ready(self) -> bool:
        return any(self._records[name].ready for name in self._engine_names)

    # ------------------------------------------------------------------ lives

    async def run(self) -> None:
        """Keep every actor alive until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._desk.run)
            nursery.start_soon(self._keep_alive, "output-0", self._output_incarnation)
            for name, index in self._engine_indices.items():
                nursery.start_soon(self._keep_engine, name, partial(self._engine_incarnation, index))
            if self._spec.shares_weights:
                nursery.start_soon(self._keep_weights)
            if self._standby is not None:
                nursery.start_soon(self._standby.run)

    async def _keep_alive(
        self,
        name: str,
        incarnation: Callable[[], Awaitable[None]],
        give_up: Callable[[str, str | None], None] | None = None,
    ) -> None:
        """Until it cannot be had; then `give_up` is called, by default with the end of the service."""
        give_up = give_up or self._give_up
        policy = RestartPolicy()
        record = self._records[name]
        while True:
            record.restarts += 1
            record.fault = None
            try:
                await incarnation()
            except OSError as error:  # no process, descriptor or socket to be had
                record.last_end = "not started"
                logger.error("%s cannot be started: %s", name, error)
            if record.cannot_start():
                return give_up(f"{name} could not start", record.fault)
            delay = policy.died(trio.current_time())
            logger.error("%s ended: %s", name, record.fault or record.last_end)
            if delay is None:
                limit = f"{policy.max_deaths} times within {policy.window:.0f} s"
                return give_up(f"{name} died {limit}", record.fault or record.last_end)
            logger.info("%s is started again in %.2f s", name, delay)
            await trio.sleep(delay)

    async def _keep_engine(self, name: str, incarnation: Callable[[], Awaitable[None]]) -> None:
        """As long as others serve, one that keeps dying is let alone for a while and tried again."""
        record = self._records[name]

        def give_up(reason: str, detail: str | None) -> None:
            if record.cannot_start() or not self._any_engine_ready():
                self._give_up(reason, detail)
            else:
                logger.error("%s: %s; the others go on, and it is tried again in %.0f s", reason, detail, REST_SECONDS)

        while not self._is_over:
            await self._keep_alive(name, incarnation, give_up)
            await trio.sleep(REST_SECONDS)

    def _give_up(self, reason: str, detail: str | None) -> None:
        """The reason is for everybody, the detail for the operator's log."""
        logger.critical("%s: %s", reason, detail)
        self._is_over = True
        self._app.send_nowait(HouseFailed(reason))

    async def _keep_weights(self) -> None:
        """Engines can do without: they then load by themselves."""
        await self._keep_alive(WEIGHTS, self._weights_incarnation, self._do_without_weights)
        self._weights = Weights(None)
        await self._tell_of_weights(*self._engine_names)

    def _do_without_weights(self, reason: str, detail: str | None) -> None:
        """But what it cannot load at the start, no engine can."""
        cannot_load = self._records[WEIGHTS].cannot_start()
        if cannot_load and not any(self._records[name].was_ready for name in self._engine_names):
            self._give_up(reason, detail)
        else:
            logger.error("%s: %s; engines load by themselves from now on", reason, detail)

    async def _weights_incarnation(self) -> None:
        spec = WeightsSpec(self._new_epoch(), self._spec.engine)
        record = self._records[WEIGHTS]
        try:
            async with self._incarnation(record, spec) as heard:
                if record.process is not None:
                    record.process.give_way(WEIGHTS_NICE)
                async for facts in heard:
                    assert isinstance(facts, WeightsFacts)
                    self._weights = Weights(facts)
                    await self._tell_of_weights(*self._engine_names)
        finally:
            self._weights = None

    async def _tell_of_weights(self, *names: str) -> None:
        """What is known; an engine that is told nothing waits."""
        for name in names:
            process = self._records[name].process
            if process is not None and self._weights is not None:
                try:
                    await process.send(self._weights)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass  # it is gone: its successor is told

    async def _engine_incarnation(self, index: EngineIndex) -> None:
        epoch = self._new_epoch()
        spec = msgspec.structs.replace(
            self._spec.engine,
            engine_index=index,
            num_engines=self._spec.num_engines,
            epoch=epoch,
            requests_address=self._address(f"e{index}.{epoch}.in"),
            outputs_addresses={FIRST_CLIENT: self._address(f"e{index}.{epoch}.out")},
            weights_seconds=WEIGHTS_SECONDS if self._spec.shares_weights else None,
        )
        record = self._records[f"engine-{index}"]
        link: SendLink[EngineInput] | None = None
        try:
            open_engine = open_process if self._standby is None else self._standby.open_engine
            async with self._incarnation(record, spec, open_engine(spec, record.name)) as heard:
                await self._tell_of_weights(record.name)
                async for facts in heard:
                    assert isinstance(facts, EngineFacts)
                    link = self._links.push(spec.requests_address, ENGINE_INPUT)
                    up = self._engines[index] = EngineUp(spec, facts, link)
                    self.send_to_output(up.attach())
                    if self._standby is not None and self._all_engines_ready():
                        self._standby.want()
        finally:
            self._engines.pop(index, None)
            if link is not None:
                link.close()
        self._app.send_nowait(EngineLost(index, epoch, record.last_end or "?", record.ended_from_outside))

    async def _output_incarnation(self) -> None:
        epoch = self._new_epoch()
        spec = OutputSpec(
            client_index=FIRST_CLIENT,
            epoch=epoch,
            inbox_address=self._address(f"o0.{epoch}.in"),
            app_address=self._address(f"o0.{epoch}.app"),
            checkpoint=self._spec.engine.checkpoint,
        )
        record = self._records["output-0"]
        from_output = self._links.pull(spec.app_address, APP_INPUT)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, from_output)
                async with self._incarnation(record, spec) as heard:
                    async for _ in heard:
                        self._output = self._links.push(spec.inbox_address, OUTPUT_INPUT)
                        for up in self._engines.values():
                            self._output.send_nowait(up.attach())
                nursery.cancel_scope.cancel()
        finally:
            from_output.close()
            if self._output is not None:
                self._output.close()
                self._output = None
        self._app.send_nowait(OutputLost(record.last_end or "?"))

    async def _pump(self, from_output: ReceiveLink[AppInput]) -> None:
        while True:
            for message in await receive_batch(from_output):
                self._app.send_nowait(message)

    @asynccontextmanager
    async def _incarnation(
        self, record: Record, spec: ActorSpec, opened: AbstractAsyncContextManager[ChildProcess] | None = None
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Facts]]:
        """One process from start to end, by default an ordinary child. The body gets its facts when it is ready, and an
        end of channel when it is gone; the record says the rest."""
        say, heard = trio.open_memory_channel[Facts](1)
        async with opened or open_process(spec, record.name) as process, trio.open_nursery() as nursery:
            record.begin(spec.epoch, process)
            try:
                nursery.start_soon(self._hear, record, process, say)
                nursery.start_soon(self._watch, record, process)
                yield heard
            finally:
                record.process, record.ready = None, False
                nursery.cancel_scope.cancel()
        record.end(process)

    async def _watch(self, record: Record, process: ChildProcess) -> None:
        """A process that hangs is no better than a dead one, which we know what to do with."""
        while True:
            if wrong := record.tick():
                record.fault = wrong
                return process.kill()
            await trio.sleep(1)

    async def _hear(self, record: Record, process: ChildProcess, say: trio.MemorySendChannel[Facts]) -> None:
        """Until the child's side of the control pipe closes, which is when the child dies or is about to."""
        with say:
            try:
                while True:
                    message = await process.receive()
                    match message:
                        case Heartbeat():
                            record.beat(message)
                        case Ready(facts=facts):
                            assert not isinstance(facts, GrammarFacts), "grammar checkers are the desk's"
                            assert not isinstance(facts, StandbyFacts), "who stands by has no record"
                            record.ready = record.was_ready = True
                            say.send_nowait(facts)
                        case Fault(message=text):
                            record.fault = text
                        case GrammarChecked():
                            record.fault = "it answered what only a grammar checker is asked"
                        case _:
                            assert_never(message)
            except (trio.EndOfChannel, trio.BrokenResourceError):
                pass
            except msgspec.DecodeError as error:
                record.fault = f"it sent a control frame that cannot be decoded: {error}"
                return process.kill()  # it is not one of ours, or no longer itself
            with trio.move_on_after(END_SECONDS):
                await process.wait()

    # ------------------------------------------------------------------ names

    def _new_epoch(self) -> Epoch:
        self._epoch += 1
        return Epoch(self._epoch)

    def _address(self, name: str) -> str:
        return f"ipc://{self._directory / name}"
