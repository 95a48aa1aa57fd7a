"""One real child process: it starts, is heard, and is gone afterwards, whatever happened in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from actors import process
from actors.process import open_process
from protocol.spec import Fault, Heartbeat, OutputSpec, Ready
from tests.helpers.processes import is_gone, wait_until_gone

pytestmark = pytest.mark.process


@pytest.fixture
def spec(tmp_path: Path, checkpoint: Path) -> OutputSpec:
    return OutputSpec(0, 1, f"ipc://{tmp_path}/in", f"ipc://{tmp_path}/app", str(checkpoint))


async def until_ready(child) -> Ready:
    while True:
        message = await child.receive()
        if isinstance(message, Ready):
            return message
        assert isinstance(message, Heartbeat)


async def test_a_child_beats_says_ready_and_is_gone_after_the_block(spec):
    async with open_process(spec, "output-0") as child:
        assert isinstance(await child.receive(), Heartbeat)
        assert (await until_ready(child)).facts.vocab_size == 512

    assert is_gone(child.pid)
    assert child.describe_end() == "exited with status 0"


async def test_a_child_that_cannot_start_says_why(spec, tmp_path):
    async with open_process(OutputSpec(0, 1, "ipc://a", "ipc://b", str(tmp_path / "missing")), "output-0") as child:
        with pytest.raises(trio.EndOfChannel):
            while not isinstance(message := await child.receive(), Fault):
                pass
            assert str(tmp_path / "missing") in message.message
            while True:
                await child.receive()
        assert await child.wait() == 1


async def test_kill_9_is_noticed_at_once(spec):
    async with open_process(spec, "output-0") as child:
        await until_ready(child)
        os.kill(child.pid, signal.SIGKILL)
        with trio.fail_after(1), pytest.raises(trio.EndOfChannel):
            while True:
                await child.receive()
        assert await child.wait() == -signal.SIGKILL

    assert child.describe_end() == "killed by SIGKILL"


@pytest.mark.parametrize(
    ("number", "from_outside"), [(signal.SIGKILL, True), (signal.SIGSEGV, False), (signal.SIGABRT, False)]
)
async def test_whoever_kills_a_child_is_told_from_its_own_faults(spec, number, from_outside):
    async with open_process(spec, "output-0") as child:
        await until_ready(child)
        os.kill(child.pid, number)
        await child.wait()
        assert child.ended_from_outside() is from_outside


async def test_what_the_kernel_kills_for_want_of_memory_was_not_killed_from_outside(spec, monkeypatch):
    kills = iter([3, 4])
    monkeypatch.setattr(process, "count_oom_kills", lambda: next(kills))
    async with open_process(spec, "output-0") as child:
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        assert not child.ended_from_outside()


async def test_who_hangs_and_is_killed_by_us_was_not_killed_from_outside(spec):
    async with open_process(spec, "output-0") as child:
        child.kill()
        await child.wait()
        assert not child.ended_from_outside()


async def test_several_tasks_may_wait_for_the_end(spec):
    async with open_process(spec, "output-0") as child, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(child.wait)
        with trio.move_on_after(0.05):
            await child.wait()
        child.kill()


async def test_a_frozen_child_is_killed_by_the_ladder(spec, monkeypatch):
    monkeypatch.setattr(process, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(process, "TERMINATE_SECONDS", 0.2)
    async with open_process(spec, "output-0") as child:
        await until_ready(child)
        os.kill(child.pid, signal.SIGSTOP)

    assert is_gone(child.pid)
    assert child.describe_end() == "killed by SIGKILL"


async def test_sigterm_ends_a_child_in_an_orderly_way_and_sigint_does_not_touch_it(spec):
    async with open_process(spec, "output-0") as child:
        await until_ready(child)
        os.kill(child.pid, signal.SIGINT)
        assert isinstance(await child.receive(), Heartbeat)
        assert isinstance(await child.receive(), Heartbeat)
        os.kill(child.pid, signal.SIGTERM)
        assert await child.wait() == 0


async def test_leaving_the_block_by_cancellation_leaves_no_process(spec):
    for ticks in (0, 1, 5, 50):
        with trio.CancelScope() as scope:
            async with open_process(spec, "output-0") as child:
                for _ in range(ticks):
                    await trio.sleep(0.002)
                scope.cancel()
                await trio.sleep_forever()
        assert is_gone(child.pid)


async def test_no_descriptor_is_left_open(spec):
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        async with open_process(spec, "output-0") as child:
            await until_ready(child)

    assert sorted(os.listdir("/proc/self/fd")) == before


PARENT = """
import sys, trio
from actors.process import open_process
from protocol.spec import OutputSpec, Ready

async def main():
    async with open_process(OutputSpec(0, 1, *sys.argv[1:]), "output-0") as child:
        while not isinstance(await child.receive(), Ready):
            pass
        print(child.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.parametrize("frozen", [False, True], ids=["running", "frozen"])
async def test_no_child_outlives_a_killed_parent(spec, frozen):
    arguments = [sys.executable, "-c", PARENT, spec.inbox_address, spec.app_address, spec.checkpoint]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as parent:
        pid = int(await trio.to_thread.run_sync(parent.stdout.readline))
        if frozen:
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
    with trio.fail_after(2):
        await wait_until_gone(pid)


async def test_a_child_writes_down_what_it_does_when_it_is_asked_and_goes_on(spec, capfd):
    async with open_process(spec, "output-0") as child:
        await until_ready(child)
        assert child.ask_for_stacks()
        assert isinstance(await child.receive(), Heartbeat)
        said = ""
        while "actors/child.py" not in said:
            await trio.sleep(0.01)
            said += capfd.readouterr().err
        os.kill(child.pid, signal.SIGSTOP)
        while child.is_running():
            await trio.sleep(0.01)
        assert not child.ask_for_stacks()
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        assert not child.ask_for_stacks()
