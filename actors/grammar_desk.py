"""Where grammars are handed in to be checked: a few checker processes, started when they are first needed.

A checker that dies over a grammar, or does not answer in time and is killed, costs nobody else anything but a new
checker's start. The grammar is then tried once more, in another one: what a checker died of may have come from outside,
and only a grammar that does it twice is at fault and costs its sender an error. The wait for a free checker is not the
grammar's fault, so it has a deadline and an error of its own. Grammars that were found good are remembered.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import final

import attrs
import msgspec
import trio

from actors.process import ChildProcess, open_process
from protocol.errors import GrammarError, TrillmError, UnavailableError
from protocol.ids import Epoch
from protocol.sampling import Grammar, GrammarSource
from protocol.spec import CheckGrammar, GrammarChecked, GrammarSpec

logger = logging.getLogger("trillm.supervisor")

NUM_CHECKERS = 2
CHECK_SECONDS = 5.0
"""For one grammar, in a checker that runs."""
START_SECONDS = 20.0
"""For a checker to start, on a busy machine."""
QUEUE_SECONDS = 10.0
"""For a checker to become free."""
MAX_FAILURES = 2
"""From when on a grammar is taken for the cause."""
MAX_REMEMBERED = 256
MAX_WAITING = 256


@attrs.define(eq=False)
class Job:
    """One grammar on its way."""

    source: GrammarSource
    failures: int = 0
    """Checkers that died under it, or did not answer."""
    done: trio.Event = attrs.field(factory=trio.Event)
    taken: trio.Event = attrs.field(factory=trio.Event)
    given_up: bool = False
    """Whoever asked is gone."""
    grammar: Grammar | None = None
    error: TrillmError | None = None

    def end(self, grammar: Grammar | None, error: TrillmError | None) -> None:
        self.grammar, self.error = grammar, error
        self.done.set()

    def may_be_innocent(self) -> bool:
        """To be asked once for each failure: whether it is to be tried again."""
        self.failures += 1
        return self.failures < MAX_FAILURES and not self.given_up


@final
class GrammarDesk:
    """`run` has to be running while `check` is used."""

    def __init__(self, checkpoint: str, new_epoch: Callable[[], Epoch]) -> None:
        self._checkpoint = checkpoint
        self._new_epoch = new_epoch
        self._put, self._jobs = trio.open_memory_channel[Job](MAX_WAITING)
        self._good: OrderedDict[GrammarSource, Grammar] = OrderedDict()

    async def check(self, source: GrammarSource) -> Grammar:
        """Raises GrammarError for a grammar that is wrong or beyond the limits, UnavailableError when the checkers
        have too much to do."""
        if found := self._good.get(source):
            self._good.move_to_end(source)
            return found
        job = Job(source)
        try:
            self._put.send_nowait(job)
            with trio.move_on_after(QUEUE_SECONDS):
                await job.taken.wait()
            if not job.taken.is_set():
                raise trio.WouldBlock
            await job.done.wait()
        except trio.WouldBlock:
            raise UnavailableError("Too many grammars are waiting to be checked", code="grammar_queue_full") from None
        finally:
            job.given_up = True
        if job.error is not None:
            raise job.error
        assert job.grammar is not None
        return self._remember(source, job.grammar)

    def _remember(self, source: GrammarSource, grammar: Grammar) -> Grammar:
        self._good[source] = grammar
        if len(self._good) > MAX_REMEMBERED:
            self._good.popitem(last=False)
        return grammar

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for index in range(NUM_CHECKERS):
                nursery.start_soon(self._serve, f"grammar-{index}")

    async def _serve(self, name: str) -> None:
        """One place at the desk: start a checker for the first job, keep it until it fails, begin again."""
        job: Job | None = None
        while True:
            if job is None or job.done.is_set():
                job = await self._next()
            job = await self._serve_in_one_process(job, name)

    async def _serve_in_one_process(self, job: Job | None, name: str) -> Job | None:
        """From this job on until the checker fails or ends; the job that it was at then, if any."""
        seconds = START_SECONDS + CHECK_SECONDS
        try:
            async with open_process(GrammarSpec(self._new_epoch(), self._checkpoint), name) as process:
                while job is not None and await self._serve_one(job, process, seconds):
                    job, seconds = await self._next_while_alive(process), CHECK_SECONDS
                process.kill()
        except OSError as error:  # no process or descriptor to be had: whoever waits may try again
            logger.error("%s cannot be had: %s", name, error)
            if job is not None and not job.done.is_set():
                job.end(None, UnavailableError("No grammar checker could be started", code="grammar_queue_full"))
        return job

    async def _next(self) -> Job:
        """The next job that somebody still waits for."""
        while (job := await self._jobs.receive()).given_up:
            pass
        job.taken.set()
        return job

    async def _next_while_alive(self, process: ChildProcess) -> Job | None:
        """Takes in the checker's heartbeats meanwhile, lest its pipe fill up; None when it has ended."""
        job: Job | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear_the_end, process, nursery.cancel_scope)
            job = await self._next()
            nursery.cancel_scope.cancel()
        return job

    async def _hear_the_end(self, process: ChildProcess, scope: trio.CancelScope) -> None:
        try:
            while True:
                await process.receive()
        except (trio.EndOfChannel, trio.BrokenResourceError, msgspec.DecodeError):
            scope.cancel()

    async def _serve_one(self, job: Job, process: ChildProcess, seconds: float) -> bool:
        """Whether the checker is fit for another job. If not, one that is not done is to be tried in the next."""
        with trio.move_on_after(seconds):
            try:
                await process.send(CheckGrammar(job.source))
                while not isinstance(answer := await process.receive(), GrammarChecked):
                    pass
            except (trio.EndOfChannel, trio.BrokenResourceError, msgspec.DecodeError):
                if not job.may_be_innocent():
                    job.end(None, GrammarError("the grammar is nested too deep or too large to be built"))
                return False
            job.end(answer.grammar, GrammarError(answer.complaint) if answer.complaint else None)
            return True
        if not job.may_be_innocent():
            job.end(None, GrammarError(f"the grammar could not be built within {CHECK_SECONDS:g} s"))
        return False
