"""Entry point of every child process: `python -P -m actors.child NAME PARENT_PID LOG_LEVEL LOG_STYLE`.

Reads its spec from stdin, answers over what was stdout, runs its actor's main, and leaves when stdin closes: then the
parent is gone. Each kind of actor makes its links in its own main's `run_…_process`. A standby reads what it is to be
from stdin later (actors/standing_by.py).
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn, assert_never

import trio

from actors.control import Control
from actors.frames import FrameReader, FrameWriter
from actors.parent_death import die_with_parent
from actors.process_title import rename_argument
from actors.stacks import write_stacks_when_asked
from actors.standing_by import stand_by
from protocol.codec import FROM_CHILD, TO_CHILD
from protocol.errors import RankLostError, TrillmError, leaves
from protocol.log_lines import LineFormatter, LogStyle, log_lines, style_of
from protocol.messages import VERSION
from protocol.spec import (
    ActorSpec,
    ApiSpec,
    EngineSpec,
    Fault,
    FromChild,
    GrammarSpec,
    KvSpec,
    OutputSpec,
    RankSpec,
    StandbySpec,
    Start,
    ToChild,
    WeightsSpec,
)

logger = logging.getLogger("trillm.child")


def take_pipes() -> tuple[int, int]:
    """Private descriptors for the control pipes; what a library prints to stdout goes to stderr instead."""
    control_in, control_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return control_in, control_out


RunActor = Callable[[ActorSpec, Control], Awaitable[None]]
"""Runs this actor until it is cancelled, or done."""


async def run(control_in: int, control_out: int, run_actor: RunActor) -> int:
    """The child's life; returns its exit status."""
    reader: FrameReader[ToChild] = FrameReader(trio.lowlevel.FdStream(control_in), TO_CHILD)
    writer: FrameWriter[FromChild] = FrameWriter(trio.lowlevel.FdStream(control_out), FROM_CHILD)
    try:
        start: ToChild | None = await reader.receive()
    except trio.EndOfChannel:
        return 0
    if isinstance(start, Start) and isinstance(start.spec, StandbySpec) and start.version == VERSION:
        start = await stand_by(reader, writer)
        if isinstance(start, Start) and start.name is not None:
            take_name(start.name)
    if not isinstance(start, Start):
        return 0
    if start.version != VERSION:
        await writer.send(Fault(f"the parent speaks protocol version {start.version}, this child {VERSION}"))
        return 1
    control = Control(reader, writer)
    status = 0
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(control.beat_forever)
            nursery.start_soon(leave_on_stop, control, nursery.cancel_scope)
            nursery.start_soon(leave_on_signal, control, nursery.cancel_scope)
            await run_actor(start.spec, control)
            nursery.cancel_scope.cancel()
    except* TrillmError as group:
        status = 1
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await control.fault("; ".join(error_texts(group)), lost_rank(group))
    except* trio.BrokenResourceError:
        status = 1  # the parent closed the control pipe: nobody is left to tell
    except* Exception as group:
        status = 1
        logger.exception("this process cannot go on")
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await control.fault("; ".join(error_texts(group)))
    return status


def error_texts(group: BaseExceptionGroup[BaseException]) -> list[str]:
    """One text for each leaf of an exception group."""
    return [
        error.message if isinstance(error, TrillmError) else f"{type(error).__name__}: {error}"
        for error in leaves(group)
    ]


def lost_rank(group: BaseExceptionGroup[BaseException]) -> int | None:
    """Which rank of this engine is to blame, if one is."""
    return next((error.rank for error in leaves(group) if isinstance(error, RankLostError)), None)


async def leave_on_stop(control: Control, scope: trio.CancelScope) -> None:
    await control.wait_for_stop()
    scope.cancel()
    end_by(control.leave_seconds)


async def leave_on_signal(control: Control, scope: trio.CancelScope) -> None:
    """SIGTERM is the ladder's second rung; SIGINT is the parent's business."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            if number == signal.SIGTERM:
                scope.cancel()
                end_by(control.leave_seconds)


def end_by(seconds: float) -> None:
    """The kernel ends us if we are still here then, whatever a compute thread is stuck in."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


async def run_one_of_ours(spec: ActorSpec, control: Control) -> None:
    """Import what this kind needs, and only that, and run it."""
    match spec:
        case EngineSpec():
            from actors.engine.main import run_engine_process

            await run_engine_process(spec, control)
        case RankSpec():
            from actors.rank.main import run_rank_process

            await run_rank_process(spec, control)
        case OutputSpec():
            from actors.output.main import run_output_process

            await run_output_process(spec, control)
        case GrammarSpec():
            from actors.grammar.main import run_grammar_process

            await run_grammar_process(spec, control)
        case WeightsSpec():
            from actors.weights.main import run_weights_process

            await run_weights_process(spec, control)
        case KvSpec():
            from actors.kv.main import run_kv_process

            await run_kv_process(spec, control)
        case ApiSpec():
            raise AssertionError("an API server is the app's: app/api_process.py runs it")
        case StandbySpec():
            raise AssertionError("a standby stands by once")
        case _:
            assert_never(spec)


def log_as(name: str, level: int, style: LogStyle) -> None:
    log_lines(level, LineFormatter(style, name), logging.StreamHandler(sys.stderr), force=True)


def take_name(name: str) -> None:
    """In the log and in lists of processes."""
    root = logging.getLogger()
    log_as(name, root.level, style_of(root))
    rename_argument(sys.argv[1], name)


def run_child(run_actor: RunActor) -> NoReturn:
    """A process's main, from start to end."""
    name, parent_pid, level, style = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), LogStyle(sys.argv[4])
    gc.disable()  # until it is ready: importing makes little garbage, and looking for it takes a sixth of the time
    die_with_parent(parent_pid)
    control_in, control_out = take_pipes()
    log_as(name, level, style)
    write_stacks_when_asked()
    status = trio.run(run, control_in, control_out, run_actor)
    sys.stderr.flush()
    # Without interpreter teardown: a compute thread that is still in a kernel must not hold up our leaving.
    os._exit(status)


if __name__ == "__main__":
    run_child(run_one_of_ours)
