"""When the first standby is made: not while the engines have their first answers to give."""

from __future__ import annotations

from itertools import count
from typing import NoReturn

import pytest
import trio

from actors import standby
from actors.standby import PATIENCE_SECONDS, QUIET_SECONDS, Standby
from protocol.ids import Epoch


@pytest.fixture
def begun_at(monkeypatch) -> list[float]:
    """When it was tried to start a standby; none can be had."""
    times: list[float] = []

    def open_process(*_: object) -> NoReturn:
        times.append(trio.current_time())
        raise OSError("no process to be had")

    monkeypatch.setattr(standby, "open_process", open_process)
    return times


async def run_for(seconds: float, stands: Standby) -> None:
    with trio.move_on_after(seconds):
        await stands.run()


async def test_the_first_standby_waits_until_the_engines_have_been_idle_for_a_while(autojump_clock, begun_at):
    began = trio.current_time()
    stands = Standby(map(Epoch, count(1)).__next__, lambda: trio.current_time() > began + 5)
    stands.want()
    await run_for(10, stands)
    assert 5 + QUIET_SECONDS <= begun_at[0] - began <= 6 + QUIET_SECONDS


async def test_engines_that_are_never_idle_do_not_keep_it_from_being_made(autojump_clock, begun_at):
    began = trio.current_time()
    stands = Standby(map(Epoch, count(1)).__next__, lambda: False)
    stands.want()
    await run_for(PATIENCE_SECONDS + 1, stands)
    assert begun_at[0] - began == pytest.approx(PATIENCE_SECONDS)
