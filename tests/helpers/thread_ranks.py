"""A model over ranks whose followers are threads of this process, for tests of what runs on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

from gpu.ranks.follower import Follower
from gpu.ranks.lead import Lead
from gpu.torch_runner import TorchRunner
from protocol.errors import RankLostError
from protocol.ids import EngineIndex, Epoch
from protocol.parallel import ParallelSpec
from protocol.spec import EngineSpec
from tests.helpers.thread_groups import SECONDS, Meetings


@final
class Unwatched:
    """Work that nobody looks at."""

    step = 0

    def enter(self, phase: str) -> None:
        pass


@contextmanager
def thread_lead(
    spec: EngineSpec, followers: list[Follower] | None = None, loaded: Callable[[], object] | None = None
) -> Iterator[Lead]:
    """The followers serve until it is left; they are put into the list, by rank. Each calls `loaded` in its thread."""
    meetings = Meetings(spec.parallel, SECONDS)
    made = [] if followers is None else followers
    for rank in range(1, spec.parallel.world):
        made.append(Follower(spec, meetings.groups(rank), ignore, loaded or nothing, None))
    threads = [threading.Thread(target=serve, args=(follower,)) for follower in made]
    for thread in threads:
        thread.start()
    try:
        yield Lead(meetings.groups(0))
    finally:
        meetings.leave()
        for thread in threads:
            thread.join()


def serve(follower: Follower) -> None:
    with suppress(RankLostError):  # the test is over
        follower.serve(Unwatched())


def load_over_threads(
    checkpoint: Path, parallel: ParallelSpec, followers: list[Follower] | None = None, **changes: object
) -> TorchRunner:
    """A runner over a tiny checkpoint. Close it: its threads wait."""
    sizes = {"block_size": 4, "num_gpu_blocks_override": 64, "device": "cpu", "dtype": "float32", "threads": 1}
    spec = EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), parallel=parallel, **(sizes | changes))
    loaded = threading.Semaphore(0)
    runner = TorchRunner.load(spec, ignore, leading=thread_lead(spec, followers, loaded.release))
    for _ in range(1, parallel.world):
        assert loaded.acquire(timeout=SECONDS)
    return runner


def ignore(progress: float) -> None:
    pass


def nothing() -> None:
    pass
