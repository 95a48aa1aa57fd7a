"""One nursery owns every process: starts each actor, hears it, notices its death at once, starts it again.

Liveness never comes from a socket. Death is the end of the control pipe and of the process; what the actors say of
themselves (heartbeats, readiness) comes over the control pipe too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import final

import attrs
import msgspec
import trio

from actors.api.server import Premises
from actors.api.servers import ApiServers
from actors.connectors import Connector, spec_of
from actors.engine_unit import EngineUnit, here
from actors.grammar_desk import GrammarDesk
from actors.handles import ActorState, EngineLost, EventOutlet, HouseEvent, HouseFailed, HouseSpec, OutputLost
from actors.hosts.others import OtherHosts
from actors.incarnation import open_incarnation
from actors.process import ChildProcess, open_process
from actors.ready_engines import ReadyEngine, ReadyEngines
from actors.record import Record
from actors.rest import REST_SECONDS, GiveUp, unless_others_serve
from actors.restart_policy import RestartPolicy
from actors.standby import Standby
from protocol.codec import APP_INPUT, ENGINE_INPUT, OUTPUT_INPUT
from protocol.ids import FIRST_CLIENT, ClientIndex, EngineIndex, Epoch
from protocol.links import Links, ReceiveLink, SendLink, receive_batch
from protocol.messages import AppInput, AttachEngine, EngineInput, OutputInput
from protocol.sampling import Grammar, GrammarSource
from protocol.spec import (
    EngineFacts,
    EngineSpec,
    KvSpec,
    OutputSpec,
    Weights,
    WeightsFacts,
    WeightsSpec,
)

WEIGHTS_SECONDS = 300.0
"""How long an engine waits for the weights actor, over all its incarnations, beside the time that the checkpoint's size
takes at a slow rate (gpu/shared_weights); after that it loads by itself."""

WEIGHTS = "weights-0"
WEIGHTS_NICE = 5
"""Most often it only looks whether a file is there, while those that are to serve are importing."""

logger = logging.getLogger("trillm.supervisor")


@final
class Supervisor:
    """Fulfils actors.handles.House."""

    def __init__(self, spec: HouseSpec, directory: Path, links: Links) -> None:
        self._spec = spec
        self._directory = directory
        self._links = links
        self._app: EventOutlet[HouseEvent] = EventOutlet()
        self._epoch = 0
        self._is_over = False
        """An actor that is needed cannot be had."""
        self._desk = GrammarDesk(spec.engine.checkpoint, self._new_epoch)
        self._standby = Standby(self._new_epoch, self._are_idle) if spec.has_standby else None
        self._engines = ReadyEngines()
        self._output: SendLink[OutputInput] | None = None
        self._weights: Weights | None = None
        """What engines are told of the weights actor; None as long as they are to wait."""
        world = spec.engine.parallel.world
        self._others = None if spec.hosts is None else OtherHosts(spec.hosts, links)
        elsewhere = here if self._others is None else self._others.open_rank
        self._units = [EngineUnit(EngineIndex(index), world, elsewhere) for index in range(spec.num_engines)]
        self._connectors = [] if spec.kv is None else [self._connector(spec.kv, unit) for unit in self._units]
        """Of each engine."""
        self.servers = None if spec.api is None else ApiServers(spec.api, self._premises())
        """Where there are several API servers; then nobody here hears what happens but they."""
        if self.servers is not None:
            self._app.listen(self.servers.take)
        names = [] if self.servers else ["output-0"]
        self._records = {name: Record(name) for name in [*names, *([WEIGHTS] if spec.shares_weights else [])]}

    # ------------------------------------------------------------------ for the app (actors.handles.House)

    def listen(self, take: Callable[[HouseEvent], None]) -> None:
        self._app.listen(take)

    def engine_facts(self, index: EngineIndex, epoch: Epoch) -> EngineFacts | None:
        return self._engines.facts(index, epoch)

    def send_to_engine(self, index: EngineIndex, message: EngineInput) -> bool:
        return self._engines.send(index, message)

    def send_to_output(self, message: OutputInput) -> bool:
        if self._output is None:
            return False
        self._output.send_nowait(message)
        return True

    async def check_grammar(self, source: GrammarSource) -> Grammar:
        return await self._desk.check(source)

    def states(self) -> list[ActorState]:
        states = [state for unit in self._units for state in unit.states()]
        states += [connector.state() for connector in self._connectors]
        states += [] if self.servers is None else self.servers.states()
        states += [
            attrs.evolve(record.state(), is_needed=name != WEIGHTS or not self._any_engine_ready())
            for name, record in self._records.items()
        ]
        return states if self._standby is None else [*states, self._standby.state()]

    def _are_idle(self) -> bool:
        return all(unit.lead.heartbeat.phase == "idle" for unit in self._units)

    def _all_engines_ready(self) -> bool:
        return all(unit.lead.ready for unit in self._units)

    def _any_engine_ready(self) -> bool:
        return any(unit.lead.ready for unit in self._units)

    # ------------------------------------------------------------------ lives

    async def run(self) -> None:
        """Keep every actor alive until cancelled."""
        if self._others is None:
            return await self._keep_all()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._others.run)
            try:
                await self._keep_all()
            finally:
                self._others.stop()

    async def _keep_all(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._desk.run)
            if self.servers is None:
                nursery.start_soon(self._keep_alive, self._records["output-0"], self._output_incarnation)
            else:
                nursery.start_soon(self.servers.run)
            for unit in self._units:
                nursery.start_soon(self._keep_engine, unit)
            for connector in self._connectors:
                nursery.start_soon(connector.keep, self._keep_alive)
            if self._spec.shares_weights:
                nursery.start_soon(self._keep_weights)
            if self._standby is not None:
                nursery.start_soon(self._standby.run)

    async def _keep_alive(
        self,
        record: Record,
        incarnation: Callable[[], Awaitable[None]],
        give_up: GiveUp | None = None,
    ) -> None:
        """Until it cannot be had; then `give_up` is called, by default with the end of the service."""
        give_up = give_up or self._give_up
        policy = RestartPolicy()
        name = record.name
        while True:
            record.restarts += 1
            record.fault = None
            try:
                await incarnation()
            except* OSError as group:  # no process, descriptor or socket to be had
                record.last_end = "not started"
                logger.error("%s cannot be started: %s", name, group.exceptions[0])
            if record.cannot_start():
                return give_up(f"{name} could not start", record.fault)
            delay = policy.died(trio.current_time())
            logger.error("%s ended: %s", name, record.fault or record.last_end)
            if delay is None:
                limit = f"{policy.max_deaths} times within {policy.window:.0f} s"
                return give_up(f"{name} died {limit}", record.fault or record.last_end)
            logger.info("%s is started again in %.2f s", name, delay)
            await trio.sleep(delay)

    async def _keep_engine(self, unit: EngineUnit) -> None:
        """As long as others serve, one that keeps dying is let alone for a while and tried again."""
        give_up = unless_others_serve(self._give_up, unit.lead, self._any_engine_ready)
        while not self._is_over:
            await self._keep_alive(unit.lead, partial(self._engine_incarnation, unit), give_up)
            await trio.sleep(REST_SECONDS)

    def _give_up(self, reason: str, detail: str | None) -> None:
        """The reason is for everybody, the detail for the operator's log."""
        logger.critical("%s: %s", reason, detail)
        self._is_over = True
        self._app.send_nowait(HouseFailed(reason))

    async def _keep_weights(self) -> None:
        """Engines can do without: they then load by themselves."""
        await self._keep_alive(self._records[WEIGHTS], self._weights_incarnation, self._do_without_weights)
        self._weights = Weights(None)
        await self._tell_all_of_weights()

    def _do_without_weights(self, reason: str, detail: str | None) -> None:
        """But what it cannot load at the start, no engine can."""
        cannot_load = self._records[WEIGHTS].cannot_start()
        if cannot_load and not any(unit.lead.was_ready for unit in self._units):
            self._give_up(reason, detail)
        else:
            logger.error("%s: %s; engines load by themselves from now on", reason, detail)

    async def _weights_incarnation(self) -> None:
        spec = WeightsSpec(self._new_epoch(), self._spec.engine)
        record = self._records[WEIGHTS]
        try:
            async with open_incarnation(record, spec) as heard:
                if isinstance(record.process, ChildProcess):
                    record.process.give_way(WEIGHTS_NICE)
                async for facts in heard:
                    assert isinstance(facts, WeightsFacts)
                    self._weights = Weights(facts)
                    await self._tell_all_of_weights()
        finally:
            self._weights = None

    async def _tell_all_of_weights(self) -> None:
        for unit in self._units:
            for record in unit.records:
                await self._tell_of_weights(record)

    async def _tell_of_weights(self, record: Record) -> None:
        """What is known; an engine or a rank that is told nothing waits."""
        if record.process is not None and self._weights is not None:
            try:
                await record.process.send(self._weights)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # it is gone: its successor is told

    async def _engine_incarnation(self, unit: EngineUnit) -> None:
        if self._others is not None:
            await self._others.until_all_there()
        epoch, index, record = self._new_epoch(), unit.index, unit.lead
        meeting = self._directory / f"e{index}.{epoch}.ranks"
        spec = msgspec.structs.replace(
            self._spec.engine,
            engine_index=index,
            num_engines=self._spec.num_engines,
            epoch=epoch,
            requests_address=self._address(f"e{index}.{epoch}.in"),
            outputs_addresses={client: self._address(f"e{index}.{epoch}.{client}.out") for client in self._clients()},
            weights_seconds=WEIGHTS_SECONDS if self._spec.shares_weights else None,
            rendezvous=self._rendezvous(meeting, index, epoch) if unit.followers else "",
            num_hosts=1 if self._spec.hosts is None else self._spec.hosts.num_hosts,
            kv_address=self._address(f"e{index}.{epoch}.kv") if self._connectors else "",
        )
        try:
            open_engine = open_process if self._standby is None else self._standby.open_engine
            opened = open_engine(spec, record.name)
            async with unit.open_incarnation(spec, opened, self._tell_of_weights) as heard:
                async for facts in heard:
                    assert isinstance(facts, EngineFacts)
                    engine = self._ready_engine(spec, facts)
                    self._engines.come(engine)
                    self.send_to_output(engine.attach)
                    if self._connectors:
                        self._connectors[index].engine_came(spec, facts)
                    if self.servers is not None:
                        self.servers.engine_came(spec, facts)
                    if self._standby is not None and self._all_engines_ready():
                        self._standby.want()
        finally:
            self._engines.go(index, epoch)
            if self._connectors:
                self._connectors[index].engine_went(epoch)
            meeting.unlink(missing_ok=True)
        self._app.send_nowait(EngineLost(index, epoch, record.last_end or "?", record.ended_from_outside))

    def _ready_engine(self, spec: EngineSpec, facts: EngineFacts) -> ReadyEngine:
        outputs_address = spec.outputs_addresses[FIRST_CLIENT]
        attach = AttachEngine(spec.engine_index, spec.epoch, spec.requests_address, outputs_address)
        return ReadyEngine(attach, facts, self._links.push(spec.requests_address, ENGINE_INPUT))

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
                async with open_incarnation(record, spec) as heard:
                    async for _ in heard:
                        self._output = self._links.push(spec.inbox_address, OUTPUT_INPUT)
                        for engine in self._engines:
                            self._output.send_nowait(engine.attach)
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

    # ------------------------------------------------------------------ several API servers

    def _clients(self) -> list[ClientIndex]:
        return [ClientIndex(index) for index in range(1 if self._spec.api is None else self._spec.api.num_servers)]

    def _premises(self) -> Premises:
        return Premises(
            links=self._links,
            checkpoint=self._spec.engine.checkpoint,
            new_epoch=self._new_epoch,
            address=self._address,
            keep_alive=self._keep_alive,
            give_up=self._give_up,
            states=self.states,
            check_grammar=self.check_grammar,
        )

    def _connector(self, template: KvSpec, unit: EngineUnit) -> Connector:
        spec = spec_of(template, unit.index, len(self._units))
        return Connector(spec, unit.lead, self._new_epoch, self._directory)

    # ------------------------------------------------------------------ names

    def _rendezvous(self, file: Path, index: EngineIndex, epoch: Epoch) -> str:
        return f"file://{file}" if self._spec.hosts is None else self._spec.hosts.meeting(index, epoch)

    def _new_epoch(self) -> Epoch:
        self._epoch += 1
        return Epoch(self._epoch)

    def _address(self, name: str) -> str:
        return f"ipc://{self._directory / name}"
