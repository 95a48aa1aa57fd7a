"""The course of a comparison: cold starts, then rounds in which every server has its turn, each time another one first.

Only one server is running at any time. What was found is handed on after each turn.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import attrs

from scripts.benchmark.compare.budget import Budget
from scripts.benchmark.compare.cold_start import cold_start_seconds, first_start_seconds
from scripts.benchmark.compare.contenders import Contender
from scripts.benchmark.compare.plan import Plan
from scripts.benchmark.compare.results import ServerResults, Turn
from scripts.benchmark.compare.turn import take_turn
from scripts.benchmark.event_stream import UnexpectedAnswerError
from scripts.benchmark.processes import ServerFailedError

Say = Callable[[str], None]
T = TypeVar("T")


@attrs.define
class Course:
    """Of one model."""

    plan: Plan
    checkpoint: Path
    contenders: Sequence[Contender]
    results: Sequence[ServerResults]
    """One for each contender, in their order; filled here."""
    budget: Budget
    say: Say
    note: Callable[[], None]
    """Called when there is more in the results."""

    def run(self) -> None:
        if self.plan.cold_starts:
            self._cold_starts()
        rounds: list[float] = []
        while len(rounds) < self.plan.rounds and self.budget.has_round(time.perf_counter(), rounds):
            began = time.perf_counter()
            if not self._round(len(rounds) + 1):
                break
            rounds.append(time.perf_counter() - began)
        if len(rounds) < self.plan.rounds:
            self.say(f"{len(rounds)} of {self.plan.rounds} rounds: there is no time for more, or nothing to measure")

    def _cold_starts(self) -> None:
        for contender, results in self._able():
            with tempfile.TemporaryDirectory() as directory:
                try:
                    results.cold_start_seconds = cold_start_seconds(contender, Path(directory) / "log")
                    results.first_start_seconds = first_start_seconds(contender, Path(directory) / "log")
                except ServerFailedError as error:
                    self._trouble(results, f"cold start: {error}")
                    continue
            first = results.first_start_seconds
            told = "" if first is None else f", without its caches {first:.1f} s"
            self.say(f"{results.name}: ready {results.cold_start_seconds:.1f} s after a cold start{told}")
            self.note()

    def _round(self, number: int) -> bool:
        """Whether any server had a turn."""
        turns = in_turn(self._able(), number - 1)
        for place, (contender, results) in enumerate(turns):
            if number == 1:
                ends_at = self.budget.turn_ends_at(time.perf_counter(), len(turns) - place)
            else:  # it is known to fit; what one server takes longer, another one takes less
                ends_at = self.budget.ends_at
            with tempfile.TemporaryDirectory() as directory:
                log = Path(directory) / "log"
                try:
                    turn = take_turn(contender.server, self.checkpoint, self.plan, number, ends_at, log)
                except (ServerFailedError, UnexpectedAnswerError) as error:
                    self._trouble(results, f"round {number}: {error}")
                    continue
            results.turns.append(turn)
            self.say(f"round {number} of {self.plan.rounds}, {results.name}: {told(turn)}")
            self.note()
        return bool(turns)

    def _able(self) -> list[tuple[Contender, ServerResults]]:
        """A server that did not start, or not answer, is not tried again."""
        pairs = zip(self.contenders, self.results, strict=True)
        return [(contender, results) for contender, results in pairs if not results.trouble]

    def _trouble(self, results: ServerResults, what: str) -> None:
        results.trouble = what.partition("; the end of its log")[0].partition("\n")[0]
        self.say(f"{results.name} is left out from here on: {what}")
        self.note()


def in_turn(things: Sequence[T], number: int) -> list[T]:
    """Another one is the first in each round."""
    first = number % max(len(things), 1)
    return [*things[first:], *things[:first]]


def told(turn: Turn) -> str:
    """A turn in one line."""
    text = f"{turn.seconds:.0f} s"
    if turn.levels:
        last = turn.levels[-1]
        text += f", {last.output_tokens / last.seconds:.0f} tok/s with {last.concurrency} at once"
        text += f"; the client took up to {max(level.client_share for level in turn.levels):.0%} of a core"
        text += f", other processes {max(level.others_share for level in turn.levels):.0%} of all cores"
    if failures := sum(level.failures for level in turn.levels):
        text += f"; {failures} requests failed"
    if turn.left_out:
        text += f"; left out: {', '.join(turn.left_out)}"
    return text
