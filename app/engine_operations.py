"""Operations on all engines at once. Who is down meanwhile is in the same state when it comes back.

Used by app/engine_client.py; single messages and their answers are in app/engine_calls.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import final

import trio

from actors.handles import ActorState
from app.engine_calls import EngineCalls
from app.engines import Engines
from protocol.errors import ConflictError, TrillmError, UnavailableError
from protocol.ids import EngineIndex, Epoch
from protocol.messages import UtilityRequest
from protocol.operations import Pause, ResetPrefixCache, Sleep, StopProfile, UtilityOperation, UtilityResult

Send = Callable[[EngineIndex, UtilityRequest], bool]


@final
class EngineOperations:
    """Of one engine client."""

    def __init__(self, engines: Engines, calls: EngineCalls, send: Send) -> None:
        self._engines = engines
        self._calls = calls
        self._send = send

    async def operate(self, operation: UtilityOperation, states: Sequence[ActorState]) -> list[UtilityResult]:
        """Have it done by every engine that is up, also by those that come up before all have answered. One that went
        down counts as one that was down. Those are told afterwards how the others are held; what else they were told,
        they have lost with their memory.

        `states`: of the actors. Raises UnavailableError when no engine has done it, and what the first says that fails.
        """
        results: dict[EngineIndex, UtilityResult] = {}
        failures: list[TrillmError] = []
        lost: list[UnavailableError] = []
        asked: set[tuple[EngineIndex, Epoch]] = set()

        async def operate_one(index: EngineIndex, epoch: Epoch) -> None:
            try:
                results[index] = await self.ask(index, epoch, operation)
            except UnavailableError as error:
                results.pop(index, None)
                lost.append(error)
            except TrillmError as error:
                failures.append(error)

        while new := self._engines.attached.items() - asked:
            asked |= new
            async with trio.open_nursery() as nursery:
                for index, epoch in sorted(new):
                    nursery.start_soon(operate_one, index, epoch)
        if failures and not (results and all(is_no_loss(operation, failure) for failure in failures)):
            raise failures[0]
        if not results:
            raise lost[0]
        for state in states:
            if state.engine_index is not None and state.engine_index not in self._engines.attached:
                self._calls.follow(state.engine_index, results.values())
        return [results[index] for index in sorted(results)]

    async def ask(self, index: EngineIndex, epoch: Epoch, operation: UtilityOperation) -> UtilityResult:
        """One engine. Raises as EngineCalls.call does."""
        return await self._calls.call(index, epoch, operation, partial(self._send, index))


def is_no_loss(operation: UtilityOperation, failure: TrillmError) -> bool:
    """An engine that was started anew has lost its profile; the others have theirs."""
    return isinstance(operation, StopProfile) and isinstance(failure, ConflictError)


def empties_caches(operation: UtilityOperation) -> bool:
    """Whether engines may afterwards find nothing of what they computed before."""
    match operation:
        case ResetPrefixCache() | Pause(clear_cache=True) | Sleep(level=1 | 2):
            return True
        case _:
            return False
