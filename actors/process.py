"""The parent's side of one child process: spawn, hear, stop. No policy: that is the supervisor's.

`subprocess.Popen` in the main thread and a pidfd, not `trio.open_process`: trio spawns from a worker thread, and
PR_SET_PDEATHSIG, which the child asks for, fires when that *thread* retires.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import final

import trio

from actors.frames import FrameReader, FrameWriter
from actors.oom_kills import count_oom_kills
from actors.stacks import STACK_SIGNAL
from protocol.codec import FROM_CHILD, TO_CHILD
from protocol.log_lines import style_of
from protocol.messages import VERSION
from protocol.spec import ActorSpec, ApiSpec, FromChild, Start, Stop, ToChild

ENTRY = "actors.child"
API_ENTRY = "app.api_process"
ASK_SECONDS = 5.0
"""How long a child may take to leave after Stop."""
PASSIVE_WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Compute threads must not spin for each other beside the server on shared cores: steps then take many times as long.
Read by OpenMP when it is loaded; an operator's own setting wins."""
POLL_SECONDS = 0.1
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What people and service managers end processes with; a process's own faults end it with others."""
SIGNAL_NAMES = {int(number): number.name for number in signal.Signals}
TERMINATE_SECONDS = 2.0
"""How long after SIGTERM, before SIGKILL."""


@final
class ChildProcess:
    """A running child. Made by `open_process`, which never leaves it behind."""

    def __init__(self, popen: subprocess.Popen[bytes], name: str) -> None:
        assert popen.stdin is not None
        assert popen.stdout is not None
        self.name = name
        self.pid = popen.pid
        self._popen = popen
        self._ended_by_us = False
        self._oom_kills = count_oom_kills()
        self._pidfd = os.pidfd_open(popen.pid)
        # The streams get descriptors of their own, since Popen's file objects close theirs when they are collected.
        self._stdin = trio.lowlevel.FdStream(os.dup(popen.stdin.fileno()))
        self._stdout = trio.lowlevel.FdStream(os.dup(popen.stdout.fileno()))
        popen.stdin.close()
        popen.stdout.close()
        self._writer: FrameWriter[ToChild] = FrameWriter(self._stdin, TO_CHILD)
        self._reader: FrameReader[FromChild] = FrameReader(self._stdout, FROM_CHILD)

    def __repr__(self) -> str:
        return f"<ChildProcess {self.name} pid={self.pid} returncode={self._popen.returncode}>"

    async def send(self, message: ToChild) -> None:
        """Raises trio.BrokenResourceError when the child is gone."""
        await self._writer.send(message)

    async def receive(self) -> FromChild:
        """Raises trio.EndOfChannel when the child has closed its side: it is gone or about to be."""
        return await self._reader.receive()

    async def wait(self) -> int:
        """Until the process has ended; its return code, negative for a signal. Any number of tasks may wait."""
        while self._popen.poll() is None:
            # A private duplicate, because trio lets only one task wait for a descriptor.
            try:
                watched = os.dup(self._pidfd)
            except OSError:  # no descriptors left: looking now and then needs none
                await trio.sleep(POLL_SECONDS)
                continue
            try:
                await trio.lowlevel.wait_readable(watched)
            finally:
                trio.lowlevel.notify_closing(watched)
                os.close(watched)
        return self._popen.returncode

    def describe_end(self) -> str:
        """How it ended, in words for the operator."""
        code = self._popen.poll()
        if code is None:
            return "still running"
        if code < 0:
            return f"killed by {SIGNAL_NAMES.get(-code, f'signal {-code}')}"
        return f"exited with status {code}"

    def ended_from_outside(self) -> bool:
        """Whether somebody else ended it by a signal, for reasons of their own: it has done nothing wrong. The kernel,
        which kills for want of memory, has reasons; where it does not tell of them, SIGKILL counts as one."""
        code = self._popen.poll()
        if code is None or self._ended_by_us or -code not in FROM_OUTSIDE:
            return False
        return -code != signal.SIGKILL or (self._oom_kills is not None and count_oom_kills() == self._oom_kills)

    @property
    def ended_by_us(self) -> bool:
        return self._ended_by_us

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def is_cut_off(self) -> bool:
        return False

    def ask_for_stacks(self) -> bool:
        """Have it write the Python stacks of its threads to stderr; False if it is stopped or gone."""
        if not self.is_running():
            return False
        self._popen.send_signal(STACK_SIGNAL)
        return True

    def is_running(self) -> bool:
        """Not ended, and not stopped by a signal."""
        if self._popen.poll() is not None:
            return False
        look = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PIDFD, self._pidfd, look) is None

    def give_way(self, nice: int) -> None:
        """Let others have the processor first, from 0 (nobody) to 19 (everybody). For the rest of its life.

        One that gives way more already, as all of a server may, stays as it is: only root can take that back."""
        if self._popen.poll() is None and os.getpriority(os.PRIO_PROCESS, self.pid) < nice:
            os.setpriority(os.PRIO_PROCESS, self.pid, nice)

    def kill(self) -> None:
        if self._popen.poll() is None:
            self._ended_by_us = True
            self._popen.kill()

    async def stop(self) -> None:
        """The ladder, each rung with its deadline: ask, terminate, kill. Returns when the process is reaped."""
        with trio.move_on_after(ASK_SECONDS):
            try:
                await self.send(Stop())
                await self._stdin.aclose()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # it is leaving already
            await self.wait()
        if self._popen.poll() is None:
            self._ended_by_us = True
            self._popen.terminate()
            with trio.move_on_after(TERMINATE_SECONDS):
                await self.wait()
        self.kill()
        await self.wait()

    async def release(self) -> None:
        """Close every descriptor. The process must have ended."""
        await trio.aclose_forcefully(self._stdin)
        await trio.aclose_forcefully(self._stdout)
        os.close(self._pidfd)


def how_to_log(root: logging.Logger) -> tuple[str, str]:
    """Level and style of our own log, which are our children's, too."""
    return str(root.getEffectiveLevel()), style_of(root)


@asynccontextmanager
async def open_process(spec: ActorSpec, name: str) -> AsyncIterator[ChildProcess]:
    """Start `python -P -m actors.child NAME`, or for an API server the app's own entry, and hand it its spec; on
    leaving, however it comes, the child is stopped. (-P: where the server was started there may be an `actors` of
    somebody else's.)

    Raises OSError if no process can be had.

    The child's stderr is ours. It gets a session of its own, so that a signal to our process group (Ctrl-C, say)
    reaches only us, and we decide in which order things end.
    """
    entry, inherited = (API_ENTRY, spec.listeners) if isinstance(spec, ApiSpec) else (ENTRY, [])
    popen = subprocess.Popen(  # noqa: ASYNC220  some milliseconds, and it has to be this thread
        [sys.executable, "-P", "-m", entry, name, str(os.getpid()), *how_to_log(logging.getLogger())],
        pass_fds=inherited,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=PASSIVE_WAITING | os.environ,
    )
    try:
        child = ChildProcess(popen, name)
    except OSError:  # no descriptors left
        popen.kill()
        popen.wait()
        raise
    try:
        try:
            await child.send(Start(version=VERSION, spec=spec))
        except trio.BrokenResourceError:
            pass  # it died at once; whoever receives or waits sees it
        yield child
    finally:
        with trio.CancelScope(shield=True):
            await child.stop()
            await child.release()
