"""Reads by NIXL whose owner stops, dies or is none, and the processes in which NIXL runs."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from actors.kv.lending import FetchError
from actors.kv.transports import choice, nixl_agent
from actors.kv.transports.choice import open_transports
from actors.kv.transports.nixl_agent import open_nixl
from actors.kv.transports.nixl_messages import Agent
from actors.kv.transports.transport import NotStartedError
from actors.kv.transports.ucx_devices import rdma_devices
from protocol.errors import StartError
from protocol.nixl_module import nixl_module
from tests.helpers.kv_peers import UNTOUCHED, contents, lend, open_owner, open_reader, open_window, owner_process, spec
from tests.helpers.processes import child_processes, is_gone, wait_until_gone

NUM_FRAMES, FRAME_BYTES = 8, 1 << 20
TCP = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "NIXL_LOG_LEVEL": "FATAL"}
needs_nixl = pytest.mark.skipif(nixl_module() is None, reason="NIXL is not installed")


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(nixl_agent, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(nixl_agent, "FIRST_REST", 0.01)


@asynccontextmanager
async def two_agents():
    """The reader's window and agent, the owner's agent and window."""
    with open_window(NUM_FRAMES, FRAME_BYTES) as ours, open_window(NUM_FRAMES, FRAME_BYTES) as theirs:
        lend(theirs, range(NUM_FRAMES))
        async with open_nixl(ours, TCP) as reader, open_nixl(theirs, TCP) as owner:
            with owner.being_read():
                yield ours, reader, owner


def is_untouched(window) -> bool:
    return all(bytes(window.frame(frame)) == UNTOUCHED * FRAME_BYTES for frame in range(NUM_FRAMES))


def wipe(window) -> None:
    for frame in range(NUM_FRAMES):
        window.frame(frame)[:] = UNTOUCHED * FRAME_BYTES


async def back(agent) -> None:
    with trio.fail_after(20):
        while agent.agent is None:
            await trio.sleep(0.01)


ALL = list(range(NUM_FRAMES))


@needs_nixl
@pytest.mark.process
async def test_after_settling_nothing_is_written_even_if_the_owner_goes_on_only_then():
    async with two_agents() as (window, reader, owner):
        os.kill(owner.pid, signal.SIGSTOP)
        try:
            with trio.move_on_after(0.2) as scope:
                await reader.read(owner.agent, ALL, ALL)
            assert scope.cancelled_caught
            pid = reader.pid
            with trio.fail_after(5):
                await reader.settle()
            assert is_gone(pid)
            wipe(window)
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        await trio.sleep(0.3)
        assert is_untouched(window)
        await back(reader)
        await back(owner)
        await reader.read(owner.agent, ALL, ALL)  # both are good for another time
        assert [bytes(window.frame(frame)) for frame in ALL] == [contents(frame, FRAME_BYTES) for frame in ALL]


@needs_nixl
@pytest.mark.process
async def test_what_comes_to_its_end_is_settled_without_the_end_of_the_process():
    async with two_agents() as (window, reader, owner):
        pid = reader.pid
        with trio.CancelScope() as scope:
            scope.cancel()
            await reader.read(owner.agent, ALL, ALL)
        with trio.fail_after(5):
            await reader.settle()
        wipe(window)
        await trio.sleep(0.1)
        assert is_untouched(window)
        assert reader.pid == pid
        assert not is_gone(pid)


@needs_nixl
@pytest.mark.process
async def test_an_owner_that_dies_in_mid_read_is_an_error_after_which_nothing_is_written():
    async with two_agents() as (window, reader, owner):
        os.kill(owner.pid, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_when_asked, reader, owner.pid)
            with trio.fail_after(5), pytest.raises(FetchError) as caught:
                await reader.read(owner.agent, ALL, ALL)
        assert caught.value.kind == "broken"
        assert not isinstance(caught.value, NotStartedError)
        await reader.settle()
        wipe(window)
        await back(owner)
        await back(reader)
        await reader.read(owner.agent, ALL[:1], ALL[-1:])
        assert bytes(window.frame(NUM_FRAMES - 1)) == contents(0, FRAME_BYTES)


async def kill_when_asked(reader, pid: int) -> None:
    await trio.testing.wait_all_tasks_blocked(0.1)
    os.kill(pid, signal.SIGKILL)


@needs_nixl
@pytest.mark.process
async def test_what_does_not_fit_an_owner_is_refused_before_anything_is_read():
    async with two_agents() as (window, reader, owner):
        described, pid = owner.agent, reader.pid
        wrong = {
            "no metadata": Agent(b"", 0),
            "garbage": Agent(b"x" * 300, described.address),
            "elsewhere": Agent(described.metadata, described.address + 8),
            "ours": Agent(reader.agent.metadata, reader.agent.address),
        }
        for name, agent in wrong.items():
            with trio.fail_after(5), pytest.raises(NotStartedError):
                await reader.read(agent, ALL, ALL)
                pytest.fail(name)
        with trio.fail_after(5), pytest.raises(NotStartedError):
            await reader.read(described, [NUM_FRAMES], [0])
        await reader.settle()
        assert is_untouched(window)
        await reader.read(described, ALL, ALL)
        assert reader.pid == pid


@needs_nixl
@pytest.mark.process
async def test_an_owner_whose_metadata_are_cut_off_is_refused():
    async with two_agents() as (window, reader, owner):
        with trio.fail_after(5), pytest.raises(NotStartedError):
            await reader.read(Agent(owner.agent.metadata[:-7], owner.agent.address), ALL, ALL)
        assert is_untouched(window)


@needs_nixl
@pytest.mark.process
async def test_a_connector_that_is_killed_takes_its_process_along(monkeypatch):
    monkeypatch.setenv("TRANSPORTS", "nixl")
    before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        async with owner_process(Path(directory), 4, 256) as (process, ticket):
            (of_nixl,) = child_processes(process.pid)
            async with open_reader(transport_names=["nixl"]) as reader:
                await reader.fetch(ticket, 4)
            process.kill()
            with trio.fail_after(10):
                await wait_until_gone(of_nixl)
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "ucx" in name]


@needs_nixl
@pytest.mark.process
async def test_where_one_side_has_no_nixl_another_transport_is_taken():
    with open_window(4) as window:
        async with (
            open_owner(window, lend(window, ALL[:4]), transports=["tcp"]) as ticket,
            open_reader(transport_names=["nixl", "tcp"]) as reader,
        ):
            assert (await reader.fetch(ticket, 4)).transport == "tcp"


@needs_nixl
@pytest.mark.process
@pytest.mark.skipif(bool(rdma_devices()), reason="there are devices for it")
async def test_by_itself_nixl_is_not_taken_for_what_goes_over_tcp_anyway(monkeypatch, caplog):
    monkeypatch.delenv("UCX_TLS", raising=False)
    monkeypatch.setenv("NIXL_LOG_LEVEL", "FATAL")
    monkeypatch.setenv("UCX_LOG_LEVEL", "FATAL")
    monkeypatch.setattr(choice, "rdma_devices", lambda: ["a device that leads nowhere"])
    with open_window(4) as window:
        async with open_transports(spec(peer_host="127.0.0.1"), window) as has:
            assert [transport.name for transport in has.readers] == ["shm", "tcp"]
            assert has.nixl is None
    assert "KV blocks do not go by NIXL" in caplog.text


def install(place: Path, api: str, monkeypatch) -> None:
    """A NIXL that is this."""
    package = place / "nixl_cu13"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_api.py").write_text(api)
    monkeypatch.setenv("PYTHONPATH", f"{place}:{os.environ.get('PYTHONPATH', '')}")


@pytest.mark.process
async def test_a_nixl_that_is_broken_stops_the_start_with_its_reason(tmp_path, monkeypatch):
    install(tmp_path, "raise ImportError('libcrypt.so.9 is missing')", monkeypatch)
    reason = r"NIXL \(nixl_cu13\) cannot be used: ImportError: libcrypt.so.9 is missing"
    with open_window(4) as window, pytest.raises(StartError, match=reason):
        async with open_nixl(window, {}):
            pass


WITHOUT_BYTES = """
from unittest.mock import MagicMock

nixl_agent_config = MagicMock()

def nixl_agent(name, config):
    agent = MagicMock(backends=["UCX"])
    agent.get_agent_metadata.return_value = b"it"
    agent.add_remote_agent.return_value = "other"
    agent.check_xfer_state.return_value = "DONE"
    return agent
"""


@pytest.mark.process
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1500, reason="needs 1,500 descriptors itself")
async def test_its_process_can_be_started_by_a_connector_that_has_many_descriptors(tmp_path, monkeypatch):
    install(tmp_path, WITHOUT_BYTES, monkeypatch)
    with ExitStack() as stack, open_window(4) as window:
        for _ in range(1100):
            stack.callback(os.close, os.open("/dev/null", os.O_RDONLY))
        async with open_nixl(window, {}) as agent:
            with trio.fail_after(20):
                await agent.read(Agent(b"other", 0), [0], [0])
