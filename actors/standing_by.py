"""A standby's life until it is an engine: import, say Ready, wait. Used by actors/child.py; the parent's side is
actors/standby.py.

It opens no device and binds nothing: importing torch makes no CUDA context.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import outcome
import trio

from actors.frames import FrameReader, FrameWriter
from protocol.spec import Fault, FromChild, Ready, StandbyFacts, ToChild


async def stand_by(reader: FrameReader[ToChild], writer: FrameWriter[FromChild]) -> ToChild | None:
    """What the parent says next, whether or not all is imported by then; None if the parent is gone."""
    message: ToChild | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(import_and_say, writer)
        with suppress(trio.EndOfChannel, trio.BrokenResourceError):
            message = await reader.receive()
        nursery.cancel_scope.cancel()
    return message


async def import_and_say(writer: FrameWriter[FromChild]) -> None:
    """In a thread of its own and not one of trio's, which would go on giving way under other work, and be waited for
    when we are to leave."""
    say, hear = trio.open_memory_channel[outcome.Outcome[None]](1)
    token = trio.lowlevel.current_trio_token()

    def work() -> None:
        result = outcome.capture(import_engine)
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(say.send_nowait, result)

    threading.Thread(target=work, name="import", daemon=True).start()
    result = await hear.receive()
    with suppress(trio.BrokenResourceError):  # the parent is gone, which the other task hears too
        if isinstance(result, outcome.Error):
            await writer.send(Fault(f"{type(result.error).__name__}: {result.error}"))
        else:
            await writer.send(Ready(StandbyFacts()))


def import_engine() -> None:
    import numpy  # noqa: F401  before giving way, since it starts threads that stay as its importer was

    # An engine is serving, whose threads wait for each other: a processor that one lacks for a moment, all lack.
    # So this takes only what nobody else wants. It is for this thread alone, which ends with the import.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    import actors.engine.main  # noqa: F401
    import gpu.torch_runner  # noqa: F401
