"""A process stands by for the next engine: it becomes that engine, or costs it nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import trio

from actors import standby
from actors.process import ChildProcess, open_process
from actors.standby import Standby, begins
from protocol.ids import FIRST_CLIENT, EngineIndex, Epoch
from protocol.messages import VERSION
from protocol.spec import EngineSpec, LoadFormat, Ready, StandbySpec, Start
from tests.helpers.processes import children, is_gone, is_stopped
from tests.helpers.tiny_checkpoints import make_checkpoint
from tests.helpers.watched_house import house_spec, open_house

pytestmark = pytest.mark.process


@pytest.fixture
def spec(tmp_path: Path, checkpoint: Path) -> EngineSpec:
    """Of an engine that is ready at once."""
    addresses = {FIRST_CLIENT: f"ipc://{tmp_path}/out"}
    return EngineSpec(
        *(EngineIndex(0), Epoch(7), f"ipc://{tmp_path}/in", addresses, str(checkpoint)), load_format=LoadFormat.DUMMY
    )


@pytest.fixture(autouse=True)
def is_quiet(monkeypatch):
    monkeypatch.setattr(standby, "QUIET_SECONDS", 0.0)


@asynccontextmanager
async def running() -> AsyncIterator[Standby]:
    stands = Standby(map(Epoch, count(1)).__next__, lambda: True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stands.run)
        yield stands
        nursery.cancel_scope.cancel()


async def until_ready(stands: Standby) -> int:
    with trio.fail_after(50):  # it gives way to whatever else runs
        while not (state := stands.state()).ready:
            await trio.sleep(0.01)
    return state.pid


def scheduling(pid: int) -> set[tuple[int, int]]:
    """Of all its threads."""
    return {
        (os.sched_getscheduler(int(thread)), os.getpriority(os.PRIO_PROCESS, int(thread)))
        for thread in os.listdir(f"/proc/{pid}/task")
    }


async def until_serving(engine: ChildProcess) -> None:
    with trio.fail_after(20):
        while not isinstance(await engine.receive(), Ready):
            pass


async def test_the_next_engine_is_the_standby_under_the_engine_s_name(spec):
    async with running() as stands:
        await trio.testing.wait_all_tasks_blocked()
        assert stands.state().phase == "down", "nothing is started before it is wanted"
        stands.want()
        pid = await until_ready(stands)
        assert children(os.getpid()) == {"standby-0": pid}

        async with stands.open_engine(spec, "engine-0") as engine:
            assert engine.pid == pid
            await until_serving(engine)
            assert children(os.getpid()) == {"engine-0": pid}
            assert scheduling(pid) == {(os.SCHED_OTHER, os.nice(0))}, "it no longer gives way"
            assert (stands.state().phase, stands.state().restarts) == ("down", 0)
        assert is_gone(pid)
        assert engine.describe_end() == "exited with status 0"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_standby_that_is_dead_or_stopped_is_replaced_by_an_ordinary_child(spec, number, monkeypatch):
    monkeypatch.setattr(standby, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(standby, "ANSWER_SECONDS", 0.0)  # it is not even asked
    async with running() as stands:
        stands.want()
        pid = await until_ready(stands)
        os.kill(pid, number)
        with trio.fail_after(2):
            while not (is_gone(pid) or is_stopped(pid)):
                await trio.sleep(0.001)

        async with stands.open_engine(spec, "engine-0") as engine:
            assert engine.pid != pid
            await until_serving(engine)
        stands.want()  # the next one may have been quick enough to become the engine
        with trio.fail_after(40):
            while stands.state().pid in (pid, None):
                await trio.sleep(0.01)


async def test_a_standby_that_does_not_answer_in_time_is_killed(spec, monkeypatch):
    monkeypatch.setattr(standby, "ANSWER_SECONDS", 0.05)
    async with open_process(StandbySpec(Epoch(1)), "standby-0") as process:
        os.kill(process.pid, signal.SIGSTOP)

        assert not await begins(process, Start(VERSION, spec, "engine-0"))
        assert await process.wait() == -signal.SIGKILL


async def test_an_engine_starts_while_the_standby_is_still_importing(spec):
    async with running() as stands:
        stands.want()
        while (importing := stands.state().pid) is None:
            await trio.sleep(0.01)
        async with stands.open_engine(spec, "engine-0") as engine:
            assert engine.pid != importing
        stopping = trio.current_time()
    assert is_gone(importing)
    assert trio.current_time() < stopping + 1, "it leaves also while it imports"


async def test_a_house_goes_on_with_its_standby_whichever_engine_dies_and_makes_another(tmp_path):
    make_checkpoint(tmp_path)
    async with open_house(house_spec(tmp_path, num_engines=2, wants_standby=True)) as watched:
        with trio.fail_after(60):
            await watched.until_ready("engine-0", "engine-1", "output-0", "standby-0")
            standing_by = watched.state("standby-0").pid
            assert not watched.state("standby-0").is_needed
            await watched.kill("engine-1")
            assert watched.state("engine-1").pid == standing_by
            await watched.until(lambda: watched.state("standby-0").phase == "load")
            assert watched.state("standby-0").pid != standing_by
    assert children(os.getpid()) == {}
