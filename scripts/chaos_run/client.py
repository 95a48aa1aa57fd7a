"""One client among many: asks, reads (or leaves, or dawdles), and judges what it got.

What happened to each of its requests is an `Outcome`; what is not as it should be is told in it and raised nowhere, for
the other clients go on.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Literal

import attrs
import trio

from scripts.chaos_run.answer import Told, first_difference
from scripts.chaos_run.bodies import Ask
from scripts.chaos_run.exchange import BrokenAnswerError, Exchange, as_json, open_exchange

Manner = Literal["reads", "leaves", "resets", "dawdles"]
MANNERS: dict[Manner, int] = {"reads": 76, "leaves": 8, "resets": 8, "dawdles": 8}
"""Of so many in a hundred."""
DAWDLE_SECONDS = (3.0, 12.0)
"""How long it reads one byte a second, before it reads the rest. Below --send-timeout, which would cut it off."""
GAP_SECONDS = 0.2
"""Silences shorter than this are not written down."""


@attrs.define
class Outcome:
    """What became of one request. Times are of trio's clock."""

    ask: str
    manner: Manner
    began: float
    ended: float = 0.0
    gaps: list[tuple[float, float]] = attrs.field(factory=list)
    """Silences of a stream that was read, from and until when; the wait for its first event is one."""
    refusals: int = 0
    """503s before it was taken."""
    verdict: Literal["running", "equal", "left", "differs", "failed"] = "running"
    detail: str = ""
    num_events: int = 0

    def hit_by(self, at: float) -> bool:
        return self.began <= at <= self.ended

    def pause(self, at: float, until: float) -> float:
        """The longest silence that began between these moments."""
        return max((end - start for start, end in self.gaps if at <= start <= until), default=0.0)


class RefusedError(Exception):
    """503: to be tried again."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


@attrs.frozen
class Client:
    """Knows the right answers, by the request's name."""

    port: int
    expected: dict[str, dict[str, Any]]
    random: random.Random
    refused_seconds: float = 60.0
    """How long it may be told 503 before that is a failure: bounded by what a restart takes."""

    async def ask(self, ask: Ask, number: int, manner: Manner) -> Outcome:
        """Until it has an answer, has left, or something is wrong."""
        began = trio.current_time()
        outcome = Outcome(ask.name, manner, began)
        while outcome.verdict == "running":
            outcome.began = trio.current_time()
            outcome.gaps.clear()
            try:
                await self._try(ask, number, outcome)
            except RefusedError as refusal:
                outcome.refusals += 1
                if trio.current_time() - began > self.refused_seconds:
                    outcome.verdict, outcome.detail = "failed", f"refused for {self.refused_seconds:.0f} s: {refusal}"
                else:
                    await trio.sleep(0.1 + 0.4 * self.random.random())
            except (BrokenAnswerError, OSError) as error:
                outcome.verdict, outcome.detail = "failed", str(error) or repr(error)
        outcome.ended = trio.current_time()
        return outcome

    async def _try(self, ask: Ask, number: int, outcome: Outcome) -> None:
        async with open_exchange(self.port, slow=outcome.manner == "dawdles") as exchange:
            await exchange.send("POST", ask.path, ask.numbered(number))
            told = Told()
            if ask.stream:
                left = await self._read_stream(exchange, told, outcome)
            else:
                left = await self._read_whole(exchange, told, outcome)
        outcome.num_events = told.num_events
        if left:
            outcome.verdict = "left"
            return
        wrong = told.complaint()
        different = None if wrong else first_difference(self.expected[ask.name], told.comparable())
        outcome.verdict = "failed" if wrong else "differs" if different else "equal"
        outcome.detail = wrong or different or ""

    async def _read_whole(self, exchange: Exchange, told: Told, outcome: Outcome) -> bool:
        """Whether it left early."""
        if outcome.manner in ("leaves", "resets"):
            with trio.move_on_after(2 * self.random.random()):
                await exchange.receive()
            self._leave(exchange, outcome)
            return True
        data = await exchange.receive_all()
        refuse_errors(exchange, data)
        told.take_whole(as_json(data))
        return False

    async def _read_stream(self, exchange: Exchange, told: Told, outcome: Outcome) -> bool:
        """Whether it left early. Silences are noted of clients that read as fast as they can."""
        leave_after = self.random.randrange(40) if outcome.manner in ("leaves", "resets") else None
        dawdle_until = trio.current_time() + self.random.uniform(*DAWDLE_SECONDS)
        heard = trio.current_time()
        while not exchange.ended:
            if outcome.manner == "dawdles" and trio.current_time() < dawdle_until:
                await trio.sleep(1)
                data = await exchange.receive(1)
            else:
                data = await exchange.receive()
                now = trio.current_time()
                if now - heard >= GAP_SECONDS and outcome.manner != "dawdles":
                    outcome.gaps.append((heard, now))
                heard = now
            if exchange.status not in (0, 200):
                refuse_errors(exchange, data + await exchange.receive_all())
            told.feed(data)
            if leave_after is not None and told.num_events > leave_after:
                self._leave(exchange, outcome)
                return True
        return False

    def _leave(self, exchange: Exchange, outcome: Outcome) -> None:
        if outcome.manner == "resets":
            exchange.reset()


def refuse_errors(exchange: Exchange, data: bytes) -> None:
    """Raises RefusedError for a 503, BrokenAnswerError for any other status but 200."""
    if exchange.status == 503:
        if exchange.retry_after is None:
            raise BrokenAnswerError(f"a 503 without Retry-After: {data[:300]!r}")
        raise RefusedError(data[:300].decode(errors="replace"))
    if exchange.status != 200:
        raise BrokenAnswerError(f"status {exchange.status}: {data[:300]!r}")


def choose_manner(chance: random.Random, manners: Mapping[Manner, int] = MANNERS) -> Manner:
    return chance.choices(list(manners), list(manners.values()))[0]
