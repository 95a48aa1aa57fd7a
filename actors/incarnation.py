"""One process of an actor from start to end, as its record tells it. Used by the supervisor and by units of ranks."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import assert_never

import msgspec
import trio

from actors.process import open_process
from actors.record import Record
from actors.running import Running
from protocol.spec import (
    ActorSpec,
    ApiFacts,
    EngineFacts,
    Fault,
    GrammarChecked,
    GrammarFacts,
    Heartbeat,
    KvFacts,
    OutputFacts,
    RankFacts,
    Ready,
    StandbyFacts,
    WeightsFacts,
)

END_SECONDS = 5.0
"""After an actor has closed its control pipe, how long until it is no longer waited for but stopped."""
STACK_SECONDS = 0.3
"""For a process that hangs to write down where."""

Facts = EngineFacts | RankFacts | OutputFacts | ApiFacts | WeightsFacts | KvFacts

logger = logging.getLogger("trillm.supervisor")


@asynccontextmanager
async def open_incarnation(
    record: Record, spec: ActorSpec, opened: AbstractAsyncContextManager[Running] | None = None
) -> AsyncIterator[trio.MemoryReceiveChannel[Facts]]:
    """By default an ordinary child. The body gets its facts when it is ready, and an end of channel when it is gone;
    the record says the rest. Raises OSError if no process can be had."""
    say, heard = trio.open_memory_channel[Facts](math.inf)  # a connector has some for each incarnation of its engine
    async with opened or open_process(spec, record.name) as process, trio.open_nursery() as nursery:
        record.begin(spec.epoch, process)
        try:
            nursery.start_soon(_hear, record, process, say)
            nursery.start_soon(_watch, record, process)
            yield heard
        finally:
            record.process, record.ready = None, False
            nursery.cancel_scope.cancel()
    record.end(process)


async def log_stack(record: Record, process: Running, wrong: str) -> None:
    """Of a process that hangs, unless somebody has stopped it."""
    beat = record.heartbeat
    logger.error("%s hangs (last heard of %.0f s into phase %s): %s", record.name, beat.phase_age, beat.phase, wrong)
    if process.ask_for_stacks():
        await trio.sleep(STACK_SECONDS)


async def _watch(record: Record, process: Running) -> None:
    """A process that hangs is no better than a dead one, which we know what to do with. It is not blamed for its host's
    silence, which whoever hears of hosts ends."""
    while True:
        if not process.is_cut_off() and (wrong := record.tick()):
            record.fault, record.has_hung = wrong, True
            await log_stack(record, process, wrong)
            return process.kill()
        await trio.sleep(1)


async def _hear(record: Record, process: Running, say: trio.MemorySendChannel[Facts]) -> None:
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
                    case Fault(message=text, lost_rank=lost_rank):
                        record.fault, record.lost_rank = text, lost_rank
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
