"""The engines' incarnations that are ready, and the ways to them: as the supervisor has them, and as each of several
API servers does (actors/api/remote_house)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import attrs

from protocol.ids import EngineIndex, Epoch
from protocol.links import SendLink
from protocol.messages import AttachEngine, EngineInput
from protocol.spec import EngineFacts


@attrs.frozen(eq=False)
class ReadyEngine:
    """An engine's incarnation that is ready."""

    attach: AttachEngine
    """What the output handler of this API server is told of it."""
    facts: EngineFacts
    link: SendLink[EngineInput]
    """Ours to it."""


@final
class ReadyEngines:
    """One at most of each index."""

    def __init__(self) -> None:
        self._engines: dict[EngineIndex, ReadyEngine] = {}

    def __iter__(self) -> Iterator[ReadyEngine]:
        return iter(self._engines.values())

    def come(self, engine: ReadyEngine) -> None:
        self._engines[engine.attach.engine_index] = engine

    def go(self, index: EngineIndex, epoch: Epoch) -> None:
        """Nothing, if it is not there, or another incarnation is."""
        if engine := self._get(index, epoch):
            del self._engines[index]
            engine.link.close()

    def facts(self, index: EngineIndex, epoch: Epoch) -> EngineFacts | None:
        """As actors.handles.House.engine_facts."""
        engine = self._get(index, epoch)
        return None if engine is None else engine.facts

    def send(self, index: EngineIndex, message: EngineInput) -> bool:
        """As actors.handles.House.send_to_engine."""
        engine = self._get(index, message.epoch)
        if engine is None:
            return False
        engine.link.send_nowait(message)
        return True

    def _get(self, index: EngineIndex, epoch: Epoch) -> ReadyEngine | None:
        engine = self._engines.get(index)
        return engine if engine is not None and engine.attach.epoch == epoch else None
