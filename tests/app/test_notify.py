"""What a service manager hears, over a real datagram socket: that we are ready, what we do, that we live and stop."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from app.engine import Readiness
from app.notify import Notifier, ServiceReport, open_notifier, status_line, take_variables
from protocol.engine_stats import EngineStats
from tests.helpers.app_under_test import make_tokenizer
from tests.helpers.fake_engine import FakeEngine


@attrs.define
class ServiceManager:
    """The other end."""

    address: str
    socket: socket.socket

    def heard(self) -> list[dict[str, str]]:
        """Every datagram since the last time."""
        found = []
        try:
            while True:
                lines = self.socket.recv(4096).decode().split("\n")
                found.append(dict(line.split("=", 1) for line in lines))
        except BlockingIOError:
            return found


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceManager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@trillm-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address.replace("@", "\0", 1))
        listener.setblocking(False)
        yield ServiceManager(address, listener)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(make_tokenizer(), readiness=Readiness(False, "engine-0: load (40%)"))


def environment(manager: ServiceManager, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.address, **more}


async def test_from_loading_to_ready_to_stopping(manager, engine, autojump_clock):
    admitted = trio.Event()
    async with trio.open_nursery() as nursery:
        with open_notifier(environment(manager)) as notifier:
            report = ServiceReport(engine, notifier)
            nursery.start_soon(report.run, admitted)
            await trio.sleep(2.5)
            assert manager.heard() == [{"STATUS": "engine-0: load (40%); 0 running, 0 waiting"}]

            engine.readiness = Readiness(True)
            admitted.set()
            await wait_all_tasks_blocked()
            assert manager.heard() == [{"READY": "1", "STATUS": "ready; 0 running, 0 waiting"}]

            engine.readiness = Readiness(False, "the server is shutting down")
            report.stopping(30.0)
            [stopping] = manager.heard()
            assert stopping["STOPPING"] == "1"
            assert stopping["STATUS"].startswith("the server is shutting down")
            assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 30_000_000
            nursery.cancel_scope.cancel()


async def test_a_server_that_is_stopped_before_it_is_ready_never_says_that_it_is(manager, engine, autojump_clock):
    admitted = trio.Event()
    async with trio.open_nursery() as nursery:
        with open_notifier(environment(manager)) as notifier:
            report = ServiceReport(engine, notifier)
            nursery.start_soon(report.run, admitted)
            await wait_all_tasks_blocked()
            report.stopping(30.0)
            admitted.set()
            await wait_all_tasks_blocked()
            assert not any("READY" in each for each in manager.heard())
            nursery.cancel_scope.cancel()


async def test_the_status_is_told_at_most_once_a_second_and_only_when_it_changed(manager, engine, autojump_clock):
    async with trio.open_nursery() as nursery:
        with open_notifier(environment(manager)) as notifier:
            engine.stats = EngineStats(1, 7)
            nursery.start_soon(ServiceReport(engine, notifier).run, trio.Event())
            await trio.sleep(0.25)
            for running in (2, 3, 4, 5, 5, 5, 5):
                engine.stats = EngineStats(running, 7)
                await trio.sleep(0.5)
            told = [m["STATUS"].rpartition("; ")[2] for m in manager.heard()]
            nursery.cancel_scope.cancel()

    assert told == ["1 running, 7 waiting", "3 running, 7 waiting", "5 running, 7 waiting"]


async def test_it_says_twice_in_each_watchdog_period_that_it_lives_until_it_cannot_go_on(
    manager, engine, autojump_clock
):
    watched = environment(manager, WATCHDOG_USEC="4000000", WATCHDOG_PID=str(os.getpid()))
    async with trio.open_nursery() as nursery:
        with open_notifier(watched) as notifier:
            nursery.start_soon(ServiceReport(engine, notifier).run, trio.Event())
            await trio.sleep(9)
            assert manager.heard().count({"WATCHDOG": "1"}) == 5  # at 0, 2, 4, 6, 8
            engine.alive = False
            await trio.sleep(9)
            assert {"WATCHDOG": "1"} not in manager.heard()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"}])
def test_a_watchdog_that_is_not_ours_hears_nothing(manager, more):
    with open_notifier(environment(manager, **more)) as notifier:
        assert notifier.watchdog_seconds is None


def test_children_do_not_inherit_the_way_to_the_manager(manager):
    variables = environment(manager, WATCHDOG_USEC="1", WATCHDOG_PID="1", HOME="/")
    taken = take_variables(variables)
    assert variables == {"HOME": "/"}
    assert taken == environment(manager, WATCHDOG_USEC="1", WATCHDOG_PID="1")


async def test_without_a_manager_nothing_is_sent(engine, autojump_clock):
    with open_notifier({}) as notifier:
        assert notifier is None
        report = ServiceReport(engine, notifier)
        await report.run(trio.Event())
        report.stopping(1.0)


@pytest.mark.parametrize("address", ["/nonexistent/notify", "vsock:2:9999", "/" + "x" * 200])
def test_a_manager_that_cannot_be_reached_costs_one_line(address, caplog):
    with caplog.at_level(logging.WARNING):
        notifier = Notifier(address, None)
        for _ in range(3):
            notifier.send(READY=1)
        notifier.close()

    assert len(caplog.records) == 1
    assert "service manager cannot be told" in caplog.text


def test_a_manager_that_does_not_read_holds_nobody_up(manager, caplog):
    notifier = Notifier(manager.address, None)
    for number in range(10_000):
        notifier.send(STATUS=number)
    notifier.close()

    assert len(caplog.records) == 1


def test_the_status_names_an_engine_that_does_not_serve_though_others_do(engine):
    engine.readiness = Readiness(True, late="engine-1: load (40%)")

    assert status_line(engine) == "ready, but engine-1: load (40%); 0 running, 0 waiting"


def test_a_reason_with_line_breaks_sets_no_other_variable(manager, engine):
    engine.readiness = Readiness(False, "it said\nMAINPID=1\nand left")
    with open_notifier(environment(manager)) as notifier:
        notifier.send(STATUS=status_line(engine))

    assert manager.heard() == [{"STATUS": "it said MAINPID=1 and left; 0 running, 0 waiting"}]
