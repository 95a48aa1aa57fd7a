"""Grammar checkers as real processes: a grammar beyond all measure costs nobody but its sender anything."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest
import trio

from actors import grammar_desk
from actors.grammar_desk import GrammarDesk
from protocol.errors import GrammarError, UnavailableError
from protocol.sampling import GrammarSource
from tests.helpers.processes import children

pytestmark = pytest.mark.process

GOOD = GrammarSource("regex", "a+")
DEEP = GrammarSource("lark", "start: a0\n" + "\n".join(f"a{i}: a{i + 1}" for i in range(6000)) + '\na6000: "y"')


@pytest.fixture(autouse=True)
def one_checker(monkeypatch):
    monkeypatch.setattr(grammar_desk, "NUM_CHECKERS", 1)


@asynccontextmanager
async def open_desk(checkpoint) -> AsyncIterator[GrammarDesk]:
    epochs = count(1)
    desk = GrammarDesk(str(checkpoint), lambda: next(epochs))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.run)
        yield desk
        nursery.cancel_scope.cancel()


async def test_a_good_grammar_is_checked_and_remembered(checkpoint):
    async with open_desk(checkpoint) as desk:
        first = await desk.check(GOOD)
        for pid in children(os.getpid()).values():
            os.kill(pid, signal.SIGKILL)

        assert await desk.check(GOOD) == first


async def test_a_wrong_grammar_is_told_in_one_line_and_the_checker_lives_on(checkpoint):
    async with open_desk(checkpoint) as desk:
        with pytest.raises(GrammarError) as caught:
            await desk.check(GrammarSource("regex", "("))
        pids = children(os.getpid())
        await desk.check(GOOD)

        assert "\n" not in caught.value.message
        assert children(os.getpid()) == pids


async def test_a_grammar_that_ends_its_process_costs_only_itself(checkpoint):
    async with open_desk(checkpoint) as desk:
        with pytest.raises(GrammarError, match="too deep or too large"):
            await desk.check(DEEP)
        await desk.check(GOOD)


async def test_a_checker_that_does_not_answer_is_killed_and_another_tries_the_grammar_again(checkpoint, monkeypatch):
    monkeypatch.setattr(grammar_desk, "CHECK_SECONDS", 0.5)
    async with open_desk(checkpoint) as desk:
        await desk.check(GOOD)
        [frozen] = children(os.getpid()).values()
        os.kill(frozen, signal.SIGSTOP)
        await desk.check(GrammarSource("regex", "b"))

        assert frozen not in children(os.getpid()).values()


async def test_a_grammar_that_no_checker_answers_in_time_is_told_so_and_the_next_one_is_served(checkpoint, monkeypatch):
    monkeypatch.setattr(grammar_desk, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(grammar_desk, "START_SECONDS", 0.05)
    async with open_desk(checkpoint) as desk:
        with pytest.raises(GrammarError, match=r"within 0 s"):
            await desk.check(GrammarSource("regex", "b"))
        monkeypatch.undo()
        await desk.check(GOOD)


async def test_a_checker_that_is_killed_from_outside_costs_the_grammar_that_it_was_at_nothing(checkpoint):
    async with open_desk(checkpoint) as desk, trio.open_nursery() as nursery:
        nursery.start_soon(desk.check, GOOD)
        while not (pids := children(os.getpid())):
            await trio.sleep(0.001)
        os.kill(*pids.values(), signal.SIGKILL)  # it is starting, with the grammar in its pipe


async def test_waiting_too_long_for_a_checker_is_not_the_grammar_s_fault(checkpoint, monkeypatch):
    monkeypatch.setattr(grammar_desk, "NUM_CHECKERS", 0)
    monkeypatch.setattr(grammar_desk, "QUEUE_SECONDS", 0.05)
    async with open_desk(checkpoint) as desk:
        with pytest.raises(UnavailableError) as caught:
            await desk.check(GOOD)

        assert caught.value.retry_after


async def test_who_leaves_while_waiting_is_passed_over(checkpoint):
    epochs = []
    desk = GrammarDesk(str(checkpoint), lambda: epochs.append(1) or len(epochs))
    with trio.move_on_after(0):
        await desk.check(DEEP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.run)
        await desk.check(GOOD)
        nursery.cancel_scope.cancel()

    assert len(epochs) == 1


async def test_without_a_process_to_be_had_the_sender_may_try_again_and_the_desk_lives_on(checkpoint, monkeypatch):
    @asynccontextmanager
    async def out_of_processes(spec, name):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        yield

    async with open_desk(checkpoint) as desk:
        with monkeypatch.context() as patched:
            patched.setattr(grammar_desk, "open_process", out_of_processes)
            with pytest.raises(UnavailableError, match="No grammar checker could be started"):
                await desk.check(GOOD)

        assert await desk.check(GOOD)
