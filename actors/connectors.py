"""The KV connector of each engine, as the supervisor keeps it: started beside the engine, and introduced to each of its
incarnations. An engine serves as well without one, so that no end of a connector ends anything else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, final

import attrs
import msgspec
import trio

from actors.handles import ActorState
from actors.incarnation import open_incarnation
from actors.process import open_process
from actors.record import Record
from actors.rest import REST_SECONDS, GiveUp
from actors.running import Running
from protocol.ids import EngineIndex, Epoch
from protocol.kv_directory import engine_directory
from protocol.spec import EngineFacts, EngineSpec, Kv, KvEngine, KvFacts, KvSpec

OpenConnector = Callable[[KvSpec, str], AbstractAsyncContextManager[Running]]

logger = logging.getLogger("trillm.supervisor")


class KeepAlive(Protocol):
    """The supervisor's: until it cannot be had, which it then tells the last argument."""

    async def __call__(
        self, record: Record, incarnation: Callable[[], Awaitable[None]], give_up: GiveUp, /
    ) -> None: ...


def spec_of(template: KvSpec, index: EngineIndex, num_engines: int) -> KvSpec:
    """For the connector of one of so many engines, which share memory and disk alike."""
    if num_engines == 1:
        return template
    return msgspec.structs.replace(
        template,
        engine_index=index,
        engine_id=f"{template.engine_id}_dp{index}",
        window_bytes=template.window_bytes // num_engines,
        disk_path=None if template.disk_path is None else str(engine_directory(Path(template.disk_path), index)),
        disk_bytes=template.disk_bytes // num_engines,
        peer_port=template.peer_port + index if template.peer_port else 0,
    )


@final
class Connector:
    """Of one engine, over all incarnations of both."""

    def __init__(
        self,
        spec: KvSpec,
        engine: Record,
        new_epoch: Callable[[], Epoch],
        directory: Path,
        open_connector: OpenConnector = open_process,
    ) -> None:
        """`engine` is the record of the process that it serves. Sockets are made in `directory`. `open_connector`
        starts a process of this spec and name."""
        self.record = Record(f"kv-{spec.engine_index}")
        self._spec = spec
        self._engine = engine
        self._new_epoch = new_epoch
        self._directory = directory
        self._open_connector = open_connector
        self._engine_is: KvEngine | None = None
        """What the connector is told of its engine; None as long as there is nothing to tell."""
        self._facts: KvFacts | None = None
        """What it has last said, while it lives."""
        self._news = trio.Event()

    def state(self) -> ActorState:
        return attrs.evolve(self.record.state(), is_needed=False)

    def engine_came(self, spec: EngineSpec, facts: EngineFacts) -> None:
        if facts.kv_layout is None:
            logger.warning("%s has a model whose KV cannot be copied: it does without a connector", self._engine.name)
            return
        self._engine_is = KvEngine(spec.epoch, spec.kv_address, facts.kv_layout)
        self._wake()

    def engine_went(self, epoch: Epoch) -> None:
        if self._engine_is is not None and self._engine_is.epoch == epoch:
            self._engine_is = KvEngine(epoch)
            self._wake()

    async def keep(self, keep_alive: KeepAlive) -> None:
        """For ever. One that cannot start, or dies too often, is let alone for a while and tried again."""

        def rest(reason: str, detail: str | None) -> None:
            logger.error(
                "%s: %s; its engine does without, and it is tried again in %.0f s", reason, detail, REST_SECONDS
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_engine)
            while True:
                await keep_alive(self.record, self._incarnation, rest)
                await trio.sleep(REST_SECONDS)

    async def _incarnation(self) -> None:
        epoch, index = self._new_epoch(), self._spec.engine_index
        peers = self._directory / f"k{index}.{epoch}.peer"
        spec = msgspec.structs.replace(
            self._spec,
            epoch=epoch,
            inbox_address=f"ipc://{self._directory / f'k{index}.{epoch}.in'}",
            peer_path=str(peers),
        )
        try:
            opened = self._open_connector(spec, self.record.name)
            async with open_incarnation(self.record, spec, opened) as heard, trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_connector)
                async for facts in heard:
                    assert isinstance(facts, KvFacts)
                    self._facts = facts
                    self._wake()
                nursery.cancel_scope.cancel()
        finally:
            peers.unlink(missing_ok=True)
            self._facts = None
            self._wake()

    async def _tell_connector(self) -> None:
        """Of each change of its engine, in the order in which they come."""
        told: KvEngine | None = None
        while (process := self.record.process) is not None:
            news = self._news
            if self._engine_is is not None and self._engine_is != told:
                told = self._engine_is
                try:
                    await process.send(told)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # it is gone: its successor is told
            await news.wait()

    async def _tell_engine(self) -> None:
        """That its connector is up, or not any more."""
        told_epoch, told = None, None
        while True:
            news = self._news
            engine, facts = self._engine_is, self._facts
            if engine is not None and engine.layout is not None:
                if engine.epoch != told_epoch:
                    told_epoch, told = engine.epoch, None  # it knows nothing yet
                if facts is not None and facts.engine_epoch != engine.epoch:
                    facts = None  # what it had for the engine before this one
                if facts != told:
                    told = facts
                    await self._send_to_engine(Kv(facts))
            await news.wait()

    async def _send_to_engine(self, message: Kv) -> None:
        if self._engine.process is not None:
            try:
                await self._engine.process.send(message)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # it is gone: its successor is told

    def _wake(self) -> None:
        news, self._news = self._news, trio.Event()
        news.set()
