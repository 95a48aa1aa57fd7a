"""Ranks as real processes that do what a test tells them, line by line. Importing torch takes seconds, so one process
does it for all, and forks them; they are used by one test after another, and only what was killed is forked again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, final

import msgspec

from tests.helpers.group_conformance import Call, make_calls

ROOT = Path(__file__).parents[2]
SECONDS = 20.0
"""What an answer may take."""


class Task(msgspec.Struct, frozen=True):
    """What one rank is told to do."""

    do: str
    """open, call, sum_on, wait_late, idle, send_many, send_large, differ or close."""
    tensor: int = 1
    pipeline: int = 1
    rank: int = 0
    address: str = ""
    seconds: float = 20.0
    start_seconds: float = 20.0
    kernels: str = ""
    """Of the library for shared memory; without it gloo."""
    group: str = "world"
    calls: list[Call] = []


class Answer(msgspec.Struct, frozen=True):
    what: Any = None
    error: str | None = None
    """The kind of error, with what it says in `text`, and of RankLostError the rank."""
    text: str = ""
    rank: int | None = None


@final
class Forker:
    """The parent's side of the process that has imported what ranks need, and does nothing but fork."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.rank_processes", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )

    def fork(self, tasks: int, answers: int) -> int:
        """A rank that reads and writes these descriptors; its process's number."""
        socket.send_fds(self._socket, [b"?"], [tasks, answers])
        return int.from_bytes(self._socket.recv(4), "little")

    def end(self) -> None:
        self._socket.close()
        self._process.wait()


@final
class RankProcess:
    """The parent's side."""

    def __init__(self, forker: Forker) -> None:
        tasks, self._tasks = os.pipe()
        self._answers, answers = os.pipe()
        self._pidfd = os.pidfd_open(forker.fork(tasks, answers))
        os.close(tasks)
        os.close(answers)
        self._heard = b""
        self._awaited = 0

    @property
    def is_idle(self) -> bool:
        """Whether it lives, and every answer of it was heard."""
        return not select.select([self._pidfd], [], [], 0)[0] and not self._awaited

    def send_signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._pidfd, number)

    def tell(self, task: Task) -> None:
        self._awaited += 2 if task.do == "sum_on" else 1
        line = msgspec.json.encode(task) + b"\n"
        while line:
            line = line[os.write(self._tasks, line) :]

    def hear(self) -> Answer:
        """Its next answer. Raises TimeoutError."""
        deadline = time.monotonic() + SECONDS
        while b"\n" not in self._heard:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise TimeoutError(f"no answer within {SECONDS:g} s")
            heard = os.read(self._answers, 1 << 20)
            assert heard, "the rank has ended"
            self._heard += heard
        line, _, self._heard = self._heard.partition(b"\n")
        self._awaited -= 1
        return msgspec.json.decode(line, type=Answer)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has been killed
            self.send_signal(signal.SIGKILL)
        select.select([self._pidfd], [], [], SECONDS)
        for descriptor in (self._tasks, self._answers, self._pidfd):
            os.close(descriptor)


@final
class RankPool:
    """As many processes as a world needs. End it."""

    def __init__(self, directory: Path, kernels: Path | None) -> None:
        self._directory = directory
        self._kernels = kernels
        self._forker = Forker()
        self._processes: list[RankProcess] = []
        self._worlds = 0

    def prepare(self, world: int) -> list[RankProcess]:
        """Processes that live and have nothing to do."""
        idle = [process for process in self._processes if process.is_idle]
        for process in self._processes:
            if process not in idle:  # it was killed, or a test has failed
                process.end()
        self._processes = [*idle, *(RankProcess(self._forker) for _ in range(world - len(idle)))]
        return self._processes[:world]

    def open(
        self,
        tensor: int,
        pipeline: int = 1,
        *,
        is_shared: bool,
        seconds: float = 20.0,
        start_seconds: float = 20.0,
        address: str = "",
        missing: int = 0,
    ) -> list[RankProcess]:
        """Groups in as many of them, but for those last ones that are `missing`."""
        self._worlds += 1
        ranks = self.prepare(tensor * pipeline)[: tensor * pipeline - missing]
        address = address or f"file://{self._directory}/world-{self._worlds}"
        kernels = str(self._kernels) if is_shared else ""
        for rank, process in enumerate(ranks):
            process.tell(Task("open", tensor, pipeline, rank, address, seconds, start_seconds, kernels))
        return ranks

    def end(self) -> None:
        for process in self._processes:
            process.end()
        self._forker.end()


def answers(ranks: Sequence[RankProcess]) -> list[Answer]:
    return [rank.hear() for rank in ranks]


def told(ranks: Sequence[RankProcess], task: Task) -> list[Answer]:
    """What all answer to the same."""
    for rank in ranks:
        rank.tell(task)
    return answers(ranks)


def fork_ranks(asked: socket.socket) -> NoReturn:
    """The forker's side: until nobody asks any more."""
    import gpu.groups.open  # noqa: F401  what takes long

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody is waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        _, descriptors, _, _ = socket.recv_fds(asked, 1, 2)
        if not descriptors:
            os._exit(0)
        tasks, answers = descriptors
        if (pid := os.fork()) == 0:
            asked.close()
            serve(os.fdopen(tasks, "rb"), os.fdopen(answers, "wb"))
            os._exit(0)
        os.close(tasks)
        os.close(answers)
        asked.send(pid.to_bytes(4, "little"))


def serve(tasks: BinaryIO, out: BinaryIO) -> None:
    """The rank's side."""
    import torch

    from gpu.groups.groups import Groups
    from gpu.groups.open import open_groups
    from gpu.groups.rendezvous import Rendezvous
    from gpu.kernels.library import KernelLibrary
    from protocol.errors import RankLostError
    from protocol.parallel import ParallelSpec

    torch.set_num_threads(1)
    stack, groups = contextlib.ExitStack(), Groups()

    def answer(answer: Answer) -> None:
        out.write(msgspec.json.encode(answer) + b"\n")
        out.flush()

    def do(task: Task) -> Any:
        nonlocal groups
        group = {
            "world": groups.world,
            "tensor": groups.tensor,
            "pipeline": groups.pipeline,
            "control": groups.control,
        }[task.group]
        match task.do:
            case "open":
                parallel = ParallelSpec(task.tensor, task.pipeline)
                kernels = KernelLibrary(Path(task.kernels)) if task.kernels else None
                rendezvous, device = Rendezvous.parse(task.address), torch.device("cpu")
                times = task.seconds, task.start_seconds
                groups = stack.enter_context(open_groups(parallel, task.rank, rendezvous, device, *times, kernels))
                return [type(one).__name__ for one in (groups.tensor, groups.pipeline, groups.world)]
            case "call":
                return make_calls(group, task.calls)
            case "sum_on":  # until something happens
                for number in range(2_000_000):
                    if number == 20:
                        answer(Answer("begun"))
                    group.all_reduce(torch.ones(100))
                return "nothing has happened"
            case "wait_late":  # the first rank comes late; processor seconds of the others meanwhile
                if group.index == 0:
                    threading.Event().wait(0.5)
                begun = time.process_time()
                group.all_reduce(torch.ones(1))
                return time.process_time() - begun
            case "send_many":
                numbers = [torch.full((4096,), float(number)) for number in range(300)]
                if group.index == 0:
                    for one in numbers:
                        group.send(one, 1)
                    group.all_reduce(torch.ones(1))
                else:
                    assert all(torch.equal(group.receive(torch.empty(4096), 0), one) for one in numbers)
                    group.all_reduce(torch.ones(1))
                return None
            case "send_large":  # how many bytes the first rank holds when it has sent each of them
                if group.index == 0:
                    held = []
                    for number in range(4):
                        group.send(torch.full((10 * 2**20,), float(number)), 1)
                        held.append(sum(message.tensor.nbytes for message in group._under_way))
                    return held
                received = (group.receive(torch.empty(10 * 2**20), 0) for _ in range(4))
                return [float(one[-1]) for one in received]
            case "idle":  # the first rank has nothing to tell for longer than a call may take
                if group.index == 0:
                    threading.Event().wait(2 * task.seconds)
                return group.broadcast(torch.full((3,), group.index)).tolist()
            case "differ":
                return group.all_reduce(torch.ones(1 + group.index)).tolist()
            case "close":
                stack.close()
                groups = Groups()
                return None
            case _:
                raise AssertionError(task.do)

    for line in tasks:
        try:
            with torch.inference_mode():
                result = Answer(do(msgspec.json.decode(line, type=Task)))
        except RankLostError as error:
            groups = Groups()
            stack.close()  # as a real rank, which ends
            result = Answer(error="RankLostError", text=str(error), rank=error.rank)
        except Exception as error:
            result = Answer(error=type(error).__name__, text=str(error))
        answer(result)


if __name__ == "__main__":
    fork_ranks(socket.socket(fileno=int(sys.argv[1])))
