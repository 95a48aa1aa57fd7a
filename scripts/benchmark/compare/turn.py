"""One server's turn in a round: started, measured, stopped. All servers of a round get the same prompts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import attrs

from scripts.benchmark.client import Call, Client
from scripts.benchmark.compare.budget import level_seconds
from scripts.benchmark.compare.closed_loop import run_closed_loop
from scripts.benchmark.compare.plan import (
    ARRIVING_PROMPT_TOKENS,
    LONG_PROMPT_TOKENS,
    STREAM_TOKENS,
    STREAMS_BESIDE_PROMPTS,
    Plan,
)
from scripts.benchmark.compare.results import BesidePrompts, Level, Turn
from scripts.benchmark.conditions import busy_seconds
from scripts.benchmark.event_stream import UnexpectedAnswerError
from scripts.benchmark.processes import RunningServer, Server, open_server
from scripts.benchmark.prompts import Prompts
from scripts.benchmark.statistics import percentile

WARM_UP_TOKENS = 8
CALL_SECONDS = 300.0
"""After this an answer that has not ended has failed."""


def take_turn(server: Server, checkpoint: Path, plan: Plan, round_: int, ends_at: float, log: Path) -> Turn:
    """Parts that would end after `ends_at` (time.perf_counter) are left out, but for the first level.

    Raises ServerFailedError if it does not start, UnexpectedAnswerError if it does not answer a first request.
    """
    began = time.perf_counter()
    with open_server(server, log) as running:
        turn = _Turn(running, Prompts(checkpoint, seed=round_), plan, ends_at)
        return turn.measure(round_, began)


@attrs.define
class _Turn:
    running: RunningServer
    prompts: Prompts
    plan: Plan
    ends_at: float
    memory_load: int = 0
    left_out: list[str] = attrs.field(factory=list)

    def measure(self, round_: int, began: float) -> Turn:
        memory_idle = self.running.memory_bytes()
        first_request = self._first_request()
        long_seconds = self._long_prompt() if self.plan.long_prompts else (None, None)
        levels = self._levels()
        beside = self._beside_prompts_if_it_fits(long_seconds[0])
        return Turn(
            round=round_,
            seconds=time.perf_counter() - began,
            ready_seconds=self.running.ready_seconds,
            first_request_seconds=first_request,
            memory_idle=memory_idle,
            memory_load=self.memory_load,
            ttft_long=long_seconds[0],
            ttft_again=long_seconds[1],
            levels=levels,
            beside=beside,
            left_out=self.left_out,
        )

    def _first_request(self) -> float:
        (call,) = self._ask(self._call(self.plan.prompt_tokens, WARM_UP_TOKENS))
        if (failure := failure_of(call)) or call.ended_at is None:
            raise UnexpectedAnswerError(f"the first request failed: {failure}")
        if call.num_prompt_tokens != self.plan.prompt_tokens:
            raise UnexpectedAnswerError(
                f"a prompt of {self.plan.prompt_tokens} tokens has {call.num_prompt_tokens} by the server's count: "
                "it does not tokenise as the others do"
            )
        return call.ended_at - call.sent_at

    def _long_prompt(self) -> tuple[float | None, float | None]:
        first = self._call(LONG_PROMPT_TOKENS, 1)
        again = attrs.evolve(first, events=[])
        for call in (first, again):
            self._ask(call)
            if failure := failure_of(call):
                self.left_out.append(f"a prompt of {LONG_PROMPT_TOKENS} tokens ({failure})")
                return None, None
        return first.first_token_seconds, again.first_token_seconds

    def _levels(self) -> list[Level]:
        found: list[Level] = []
        for concurrency in self.plan.concurrency:
            if found:
                expected = level_seconds((found[-1].requests, found[-1].seconds), self.plan.requests(concurrency))
                if time.perf_counter() + expected > self.ends_at:
                    self.left_out += [f"{n} at once (no time)" for n in self.plan.concurrency if n >= concurrency]
                    break
            found.append(self._level(concurrency))
        return found

    def _level(self, concurrency: int) -> Level:
        plan = self.plan
        calls = [self._call(plan.prompt_tokens, plan.output_tokens) for _ in range(plan.requests(concurrency))]
        before = Clocks.read(self.running)
        run_closed_loop(calls, concurrency, CALL_SECONDS, self._note_memory)
        return level_of(calls, concurrency, Clocks.read(self.running).since(before))

    def _note_memory(self) -> None:
        self.memory_load = max(self.memory_load, self.running.memory_bytes())

    def _beside_prompts_if_it_fits(self, long_seconds: float | None) -> BesidePrompts | None:
        plan = self.plan
        if not plan.arrivals or long_seconds is None:
            return None
        prompts = plan.arrivals + STREAMS_BESIDE_PROMPTS * plan.prompt_tokens / ARRIVING_PROMPT_TOKENS
        # Beside streams a prompt takes longer than alone: twice as long, say.
        expected = plan.arrivals + 2 * prompts * long_seconds * ARRIVING_PROMPT_TOKENS / LONG_PROMPT_TOKENS
        if time.perf_counter() + expected > self.ends_at:
            self.left_out.append("streams beside long prompts (no time)")
            return None
        try:
            return self._beside_prompts(2 * expected)
        except UnexpectedAnswerError as error:
            self.left_out.append(f"streams beside long prompts ({error})")
            return None

    def _beside_prompts(self, seconds: float) -> BesidePrompts:
        """Streams that run on, long enough for the window to end before they do, while long prompts arrive."""
        client = Client()
        try:
            streams = [self._call(self.plan.prompt_tokens, STREAM_TOKENS) for _ in range(STREAMS_BESIDE_PROMPTS)]
            for call in streams:
                client.start(call)
            if not client.run(lambda: all(len(call.events) > 1 for call in streams), CALL_SECONDS):
                raise UnexpectedAnswerError("the streams did not begin")
            began = time.perf_counter()
            arriving: list[Call] = []
            for _ in range(self.plan.arrivals):
                arriving.append(self._call(ARRIVING_PROMPT_TOKENS, 1))
                client.start(arriving[-1])
                client.run(lambda: False, 1.0)
            client.run(lambda: all(call.ended_at for call in arriving), seconds)
            ended = time.perf_counter()
        finally:
            client.close()
        return beside_of(streams, arriving, began, ended)

    def _call(self, num_prompt_tokens: int, max_tokens: int) -> Call:
        server = self.running
        return Call(server.address, server.server.model, self.prompts.make(num_prompt_tokens), max_tokens)

    def _ask(self, *calls: Call) -> Sequence[Call]:
        run_closed_loop(calls, len(calls), CALL_SECONDS)
        return calls


@attrs.frozen
class Clocks:
    """Seconds that have gone by, and of CPU that were used, up to one moment or between two."""

    seconds: float
    server: float
    client: float
    machine: float
    """Of all its cores."""

    @classmethod
    def read(cls, running: RunningServer) -> Clocks:
        return cls(time.perf_counter(), running.cpu_seconds(), time.process_time(), busy_seconds())

    def since(self, earlier: Clocks) -> Clocks:
        pairs = zip(attrs.astuple(self), attrs.astuple(earlier), strict=True)
        return Clocks(*(late - early for late, early in pairs))

    def others_share(self, cores: int) -> float:
        return max(0.0, self.machine - self.server - self.client) / (cores * self.seconds)


def level_of(calls: Sequence[Call], concurrency: int, took: Clocks) -> Level:
    """What came of a level's calls."""
    failures = [failure for call in calls if (failure := failure_of(call))]
    answered = [call for call in calls if not failure_of(call)]
    gaps = [gap for call in answered for gap in call.gaps()] or [0.0]
    return Level(
        concurrency=concurrency,
        requests=len(calls),
        failures=len(failures),
        failure=failures[0] if failures else "",
        seconds=took.seconds,
        output_tokens=sum(call.num_tokens for call in answered),
        ttft=[call.first_token_seconds for call in answered],
        e2e=[call.ended_at - call.sent_at for call in answered if call.ended_at is not None],
        texts=sum(len(call.text_times) for call in answered),
        itl_p50=percentile(gaps, 0.5),
        itl_p95=percentile(gaps, 0.95),
        itl_p99=percentile(gaps, 0.99),
        itl_max=max(gaps),
        cpu_seconds=took.server,
        client_share=took.client / took.seconds,
        others_share=took.others_share(os.cpu_count() or 1),
    )


def beside_of(streams: Sequence[Call], arriving: Sequence[Call], began: float, ended: float) -> BesidePrompts:
    """What came of streams and the prompts that arrived beside them, between two moments."""
    gaps = [gap for call in streams for gap in call.gaps(since=began)]
    # A stream that has come to a standstill counts too.
    gaps += [ended - call.text_times[-1] for call in streams if call.ended_at is None]
    return BesidePrompts(
        streams=len(streams),
        arrivals=len(arriving),
        prompt_tokens=ARRIVING_PROMPT_TOKENS,
        itl_p50=percentile(gaps, 0.5),
        itl_p99=percentile(gaps, 0.99),
        ttft=[call.first_token_seconds if call.text_times else ended - call.sent_at for call in arriving],
    )


def failure_of(call: Call) -> str:
    """Why a call that is over does not count; empty if it does."""
    if call.failure:
        return call.failure
    try:
        return "" if call.num_tokens and call.text_times else "an answer without text"
    except UnexpectedAnswerError as error:
        return str(error)
