"""Operations on the engines: each is one message and one answer, with a deadline, and fails at once with its engine.

Remembers whether each engine takes steps, since one that is started anew has to be told before it gets any request.
Used by app/engine_client.py, which delivers the messages and what comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import assert_never, final

import trio

from app.api_identity import ALONE, ApiIdentity
from protocol.errors import ConflictError, DeadlineError, OperationFailedError, TrillmError, UnavailableError
from protocol.ids import EngineIndex, Epoch
from protocol.messages import UtilityReply, UtilityRequest
from protocol.operations import (
    AbortAll,
    AddLora,
    AllAborted,
    EngineState,
    GetState,
    ListLoras,
    Pause,
    PauseMode,
    PinLora,
    RemoveLora,
    ResetPrefixCache,
    Resume,
    RunState,
    Sleep,
    SleepTag,
    StartProfile,
    StopProfile,
    UtilityOperation,
    UtilityResult,
    WakeUp,
)

SOON_SECONDS = 10.0
"""For what an engine answers between two steps."""
WRITING_SECONDS = 120.0
"""For what has a file to write, or an adapter's to read."""
LOADING_SECONDS = 900.0
WAITING_SECONDS = 3600.0
"""For what waits until requests are finished."""
MEMORY_TAGS = (SleepTag.WEIGHTS, SleepTag.KV_CACHE)

Send = Callable[[UtilityRequest], bool]
"""Hands a request to an engine; whether it is there."""

logger = logging.getLogger("trillm")


def seconds_for(operation: UtilityOperation) -> float:
    """How long its answer may take."""
    match operation:
        case GetState() | ResetPrefixCache() | Resume() | AbortAll() | RemoveLora() | ListLoras() | PinLora():
            return SOON_SECONDS
        case StartProfile() | StopProfile() | AddLora():
            return WRITING_SECONDS
        case Pause(mode=mode) | Sleep(mode=mode):
            return WAITING_SECONDS if mode is PauseMode.WAIT else WRITING_SECONDS
        case WakeUp():
            return LOADING_SECONDS
        case _:
            assert_never(operation)


def combined(states: Iterable[RunState]) -> RunState:
    """Of several engines: what is true of any of them."""
    paused, levels, asleep = False, [], set()
    for state in states:
        paused |= state.is_paused
        asleep |= {*state.asleep}
        if state.sleep_level is not None:
            levels.append(state.sleep_level)
    return RunState(paused, max(levels, default=None), sorted(asleep))


def unheard(index: EngineIndex, state: RunState) -> None:
    """Nobody else is to know."""


@final
class EngineCalls:
    """The operations that are not answered yet."""

    def __init__(self, identity: ApiIdentity = ALONE, told: Callable[[EngineIndex, RunState], None] = unheard) -> None:
        """`told`: given how an engine is held or released, when that is something new."""
        self._client = identity.client
        self._ids = identity.call_ids()
        self._told = told
        self._calls: dict[int, tuple[EngineIndex, trio.MemorySendChannel[UtilityResult | TrillmError]]] = {}
        self._run_states: dict[EngineIndex, RunState] = {}

    @property
    def run_state(self) -> RunState:
        """Of all engines, as far as they have answered."""
        return combined(self._run_states.values())

    def state_of(self, index: EngineIndex) -> RunState:
        """Of one engine, as it last said."""
        return self._run_states.get(index, RunState())

    def follow(self, index: EngineIndex, results: Iterable[UtilityResult]) -> None:
        """This engine is down while the others have been held or released, and is to be as they are."""
        if states := [result for result in results if isinstance(result, RunState)]:
            self._note(index, combined(states))

    def learn(self, index: EngineIndex, state: RunState) -> None:
        """Another API server has had it held or released."""
        self._run_states[index] = state

    def _note(self, index: EngineIndex, state: RunState) -> None:
        is_new = state != self.state_of(index)
        self._run_states[index] = state
        if is_new:
            self._told(index, state)

    def is_held(self, index: EngineIndex) -> bool:
        """Whether requests of this engine wait because somebody wants them to."""
        return self.state_of(index).is_held

    async def call(self, index: EngineIndex, epoch: Epoch, operation: UtilityOperation, send: Send) -> UtilityResult:
        """The engine's answer. Raises what the engine says is wrong, UnavailableError when it goes down, and
        DeadlineError: it may then do it nevertheless."""
        seconds = seconds_for(operation)
        call_id = next(self._ids)
        say, answer = trio.open_memory_channel[UtilityResult | TrillmError](1)
        self._calls[call_id] = (index, say)
        try:
            if not send(UtilityRequest(epoch, self._client, call_id, operation)):
                raise UnavailableError(f"engine {index} is not ready")
            with trio.fail_after(seconds):
                result = await answer.receive()
        except trio.TooSlowError:
            raise DeadlineError(f"engine {index} has not answered within {seconds:g} s") from None
        finally:
            self._calls.pop(call_id, None)
        if isinstance(result, TrillmError):
            raise result
        return result

    def hold_again(self, index: EngineIndex, epoch: Epoch, send: Send) -> None:
        """Tell a new incarnation what its predecessor was told, before it gets requests. Its answers are not awaited:
        it is held from the first message on, and gives memory back later.

        With nothing to be told the engine is asked: it may be held by an operation whose answer was lost with the
        output handler. (What it is told it answers with all that it is held by.)"""
        state = self.state_of(index)
        operations: list[UtilityOperation] = []
        if state.sleep_level is not None:
            operations.append(Sleep(state.sleep_level, PauseMode.KEEP))
            if state.asleep and (awake := [tag for tag in MEMORY_TAGS if tag not in state.asleep]):
                operations.append(WakeUp(awake))
        if state.is_paused:
            operations.append(Pause(PauseMode.KEEP, clear_cache=False))
        for operation in operations or [GetState()]:
            send(UtilityRequest(epoch, self._client, next(self._ids), operation))

    def take(self, index: EngineIndex, reply: UtilityReply) -> None:
        """An answer, also one that nobody waits for any more."""
        result = reply.result
        if isinstance(result, RunState):
            self._note(index, result)
        elif isinstance(result, AllAborted | EngineState) and result.run_state is not None:
            self._note(index, result.run_state)
        failure = ConflictError if reply.is_conflict else OperationFailedError
        self._answer(reply.call_id, result or failure(reply.error or "the engine sent an empty answer"))

    def fail(self, index: EngineIndex | None, reason: str) -> None:
        """This engine (None: any) will not answer any more."""
        for call_id, (call_index, _) in list(self._calls.items()):
            if index is None or call_index == index:
                self._answer(call_id, UnavailableError(f"The engine has not done this: {reason}"))

    def _answer(self, call_id: int, value: UtilityResult | TrillmError) -> None:
        if call := self._calls.pop(call_id, None):
            call[1].send_nowait(value)
        elif isinstance(value, TrillmError):
            logger.warning("an operation that nobody waits for failed: %s", value.message)
