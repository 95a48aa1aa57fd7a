"""What the engine says to one client: its output socket, and the numbers of what goes over it. Used by
actors/engine/main.py."""

from __future__ import annotations

from typing import Protocol, final

import msgspec

from protocol.engine_stats import EngineStats
from protocol.errors import ConflictError, TrillmError
from protocol.ids import ClientIndex, Epoch
from protocol.links import Outbox, send_in_parts
from protocol.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineHeartbeat,
    EngineOutput,
    FinishReason,
    UtilityReply,
    Welcome,
)
from protocol.operations import UtilityResult


class Client(Protocol):
    """One client's output socket: an outbox, and an inbox of its subscription's coming (True) and going (False)."""

    def send_nowait(self, value: EngineOutput) -> None: ...

    async def receive(self) -> bool: ...


@final
class Publisher:
    """Numbers what is said to one client. Nothing is said before it has subscribed: ZMQ would drop it."""

    def __init__(self, epoch: Epoch, client_index: ClientIndex, outbox: Outbox[EngineOutput]) -> None:
        self._epoch = epoch
        self._index = client_index
        self._outbox = outbox
        self._next_seq = 0
        self._subscribed = False

    def welcome(self) -> None:
        self._subscribed = True
        self._outbox.send_nowait(Welcome(self._epoch, self._index, self._next_seq))

    def farewell(self) -> None:
        self._subscribed = False

    def outputs(self, outputs: list[EngineCoreOutput], stats: EngineStats, at: float) -> None:
        """`at` is now, in seconds of CLOCK_MONOTONIC."""

        def send(part: list[EngineCoreOutput]) -> None:
            self._numbered(EngineCoreOutputs(self._epoch, self._index, self._next_seq, part, stats, at))

        send_in_parts(outputs, send, too_large)

    def reply(self, call_id: int, result: UtilityResult | TrillmError) -> None:
        reply = UtilityReply(self._epoch, self._index, self._next_seq, call_id)
        if isinstance(result, TrillmError):
            is_conflict = isinstance(result, ConflictError)
            self._numbered(msgspec.structs.replace(reply, error=result.message, is_conflict=is_conflict))
        else:
            self._numbered(msgspec.structs.replace(reply, result=result))

    def heartbeat(self, stats: EngineStats) -> None:
        if self._subscribed:
            self._outbox.send_nowait(EngineHeartbeat(self._epoch, self._index, self._next_seq, stats))

    def _numbered(self, message: EngineOutput) -> None:
        if self._subscribed:
            self._outbox.send_nowait(message)
        self._next_seq += 1


def too_large(output: EngineCoreOutput) -> EngineCoreOutput:
    """What a client gets instead of log-probabilities that no frame holds. (The request may go on in the engine until
    the output handler has aborted it.)"""
    error = "the log-probabilities of this output are too large to be sent; ask for fewer"
    return EngineCoreOutput(output.request_id, output.offset, [], finish_reason=FinishReason.ERROR, error=error)
