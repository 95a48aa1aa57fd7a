"""What scripts/gpu_check tells a process that it starts, and what that answers. Used by worlds, shared_tensors and by
task_process, the other side."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import msgspec

from protocol.spec import EngineSpec
from protocol.tensors import CudaTensor, FileTensor

ROOT = Path(__file__).parents[2]
SECONDS = 240.0
"""For all that one world, or one receiver, does: most of it is importing torch."""


class Conform(msgspec.Struct, frozen=True, tag="conform"):
    """Join the groups of this spec, and make every call in each of them."""

    spec: EngineSpec
    rank: int


class Lead(msgspec.Struct, frozen=True, tag="lead"):
    """Compute a model alone, then over ranks."""

    spec: EngineSpec


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """Until killed."""

    spec: EngineSpec
    rank: int


class Receive(msgspec.Struct, frozen=True, tag="receive"):
    """Map this tensor, and hold it until killed."""

    handle: CudaTensor | FileTensor


Task = Conform | Lead | Follow | Receive


class Answer(msgspec.Struct, frozen=True):
    digests: dict[str, list[str]] = {}
    """By group, of what each call gave; or of the tensor that was mapped."""
    difference: float = 0.0
    """Relative, of logits."""
    seconds: float = 0.0
    """Of the one thing that is worth measuring: a small sum, or a decode step."""
    error: str | None = None


class ProcessFailedError(Exception):
    """A process that was started here said what went wrong, or ended without a word, or took too long."""


@attrs.frozen
class TaskProcess:
    """Made by `open_tasks`."""

    popen: subprocess.Popen[bytes]
    pidfd: int
    result: Path

    def answer(self) -> Answer | None:
        """None as long as there is none. Raises ProcessFailedError."""
        if self.result.exists():
            answer = msgspec.json.decode(self.result.read_bytes(), type=Answer)
            if answer.error is not None:
                raise ProcessFailedError(answer.error)
            return answer
        if self.popen.poll() is not None:
            raise ProcessFailedError(f"a process ended with status {self.popen.returncode} and without an answer")
        return None


@contextmanager
def open_tasks(
    tasks: Sequence[Task], directory: Path, environ: dict[str, str] | None = None
) -> Iterator[list[TaskProcess]]:
    """A process for each; at the end they are killed. `directory` is theirs alone."""
    started: list[TaskProcess] = []
    try:
        for number, task in enumerate(tasks):
            result = directory / f"answer-{number}"
            command = [sys.executable, "-m", "scripts.gpu_checks.task_process", str(result)]
            environment = os.environ | (environ or {}) | {"PYTHONPATH": str(ROOT)}
            popen = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
            started.append(TaskProcess(popen, os.pidfd_open(popen.pid), result))
            assert popen.stdin is not None
            popen.stdin.write(msgspec.json.encode(task))
            popen.stdin.close()
        yield started
    finally:
        for process in started:
            process.popen.kill()
            process.popen.wait()
            os.close(process.pidfd)


def answers_of(awaited: Sequence[TaskProcess], every: Sequence[TaskProcess]) -> list[Answer]:
    """Of the first, while none of all may end without one. Raises ProcessFailedError."""
    deadline = time.monotonic() + SECONDS
    while True:
        ended = [process for process in every if process.popen.poll() is not None]
        silent = [process for process in ended if not process.result.exists()]
        for process in [*silent, *awaited, *ended]:  # in the order in which they are to blame
            process.answer()
        answers = [answer for process in awaited if (answer := process.answer()) is not None]
        if len(answers) == len(awaited):
            return answers
        if time.monotonic() > deadline:
            raise ProcessFailedError(f"no answer within {SECONDS:.0f} s")
        ends = select.poll()
        for process in every:
            if process not in ended:
                ends.register(process.pidfd, select.POLLIN)
        ends.poll(100)
