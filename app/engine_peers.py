"""What app/engine_client.py lets other API servers know of the engines, where there are others (app/peers.py)."""

from __future__ import annotations

from typing import Protocol

from protocol.ids import EngineIndex
from protocol.operations import RunState


class EnginePeers(Protocol):
    """All other API servers."""

    def held(self, index: EngineIndex, state: RunState) -> None:
        """They know how this engine is held or released, for when it is started anew."""

    def caches_emptied(self) -> None:
        """They expect nothing of what engines computed before."""

    async def settle(self) -> None:
        """Returns when what these two have told is known to all that are up, or cannot be told."""


class NobodyElse:
    """There is one API server."""

    def held(self, index: EngineIndex, state: RunState) -> None:
        pass

    def caches_emptied(self) -> None:
        pass

    async def settle(self) -> None:
        pass
