"""The answer to one request while it is generated: deltas in, counts and metrics kept, failures raised.

Between the engine client and what formats answers: app/routes for whole ones, app/stream.py for streamed ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio
from attrs import define
from msgspec import UNSET, UnsetType

from app.deadline import Deadline
from app.engine import EngineClient, Generation, Prompt
from app.kv_transfer import told_transfer
from app.metrics import Metrics
from app.request_metrics import EndedSequence
from app.schemas.usage import Usage, usage
from app.tracing.sequence import TracedSequence
from protocol.errors import RequestFailedError, TrillmError, UnavailableError
from protocol.ids import FIRST_ENGINE, EngineIndex
from protocol.messages import FinishReason, RequestOutput
from protocol.timeline import Timeline, then


@define
class _Progress:
    num_prompt_tokens: int
    max_tokens: int
    num_tokens: int = 0
    num_cached_tokens: int = 0
    last_at: float | None = None
    """trio's clock, at the latest token."""
    timeline: Timeline | None = None
    """As far as it is known."""
    finish_reason: str | None = None
    kv_ticket: bytes | None = None
    """For its KV, if that was to be kept for another server."""
    engine: EngineIndex = FIRST_ENGINE
    """Where its latest output came from."""
    ended_at: float | None = None
    """trio's clock."""

    def as_ended(self) -> EndedSequence:
        return EndedSequence(
            self.num_prompt_tokens, self.num_cached_tokens, self.num_tokens, self.max_tokens, self.timeline
        )

    def as_traced(self, offset: float) -> TracedSequence:
        return TracedSequence(
            self.num_prompt_tokens,
            self.num_cached_tokens,
            self.num_tokens,
            self.finish_reason,
            self.engine,
            self.timeline,
            None if self.ended_at is None else self.ended_at + offset,
        )


class Answer:
    """`n` choices for each prompt: choice i of prompt p has the index p * n + i."""

    def __init__(self, generation: Generation, prompts: Sequence[Prompt], n: int, metrics: Metrics) -> None:
        self._generation = generation
        self._metrics = metrics.requests
        self._n = n
        self._failure: TrillmError | None = None
        self._began = trio.current_time()
        self._choices = [
            _Progress(len(prompt.prompt_token_ids), prompt.sampling_params.max_tokens) for prompt in prompts
        ]

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    @property
    def finished(self) -> bool:
        return self._generation.finished and self._failure is None

    @property
    def finish_reasons(self) -> list[str]:
        """Of the choices that have ended, each reason once."""
        return list(dict.fromkeys(choice.finish_reason for choice in self._choices if choice.finish_reason))

    async def receive(self) -> list[tuple[int, RequestOutput]]:
        """What is new, per choice. Raises EngineDeadError, RequestFailedError, DeadlineError, and UnavailableError
        (draining, or queued for too long). What came together with the end of a choice that failed is told first."""
        if self._failure is not None:
            raise self._failure
        outputs = await self._generation.receive()
        now = trio.current_time()
        for index, output in outputs:
            choice = self._choices[index]
            choice.engine = self._generation.engine(index)
            self._observe(choice, output, now)
        self._failure = next((failure for _, output in outputs if (failure := _failure(output))), None)
        if self._failure is None:
            return outputs
        before = [(index, output if _failure(output) is None else _unended(output)) for index, output in outputs]
        told = [(index, output) for index, output in before if output.text or output.token_ids or output.finish_reason]
        if not told:
            raise self._failure
        return told

    def usage(self) -> Usage:
        """Of the whole request so far. The prompt counts once, however many choices it has."""
        firsts = self._choices[:: self._n]
        return usage(
            sum(choice.num_prompt_tokens for choice in firsts),
            sum(choice.num_tokens for choice in self._choices),
            sum(choice.num_cached_tokens for choice in firsts),
        )

    def sequences(self, offset: float) -> list[TracedSequence]:
        """What became of each choice so far. `offset`: of CLOCK_MONOTONIC from trio's clock, in seconds."""
        return [choice.as_traced(offset) for choice in self._choices]

    def kv_transfer_params(self, answer_id: str) -> dict[str, Any] | UnsetType:
        """For the server that is to go on, if its KV was to be kept for one."""
        tickets = [choice.kv_ticket for choice in self._choices if choice.kv_ticket is not None]
        told = told_transfer(tickets[0], answer_id) if tickets else None
        return UNSET if told is None else told

    def close(self) -> None:
        """Counts what was abandoned, and prompts of which nothing was."""
        for start in range(0, len(self._choices), self._n):
            of_prompt = self._choices[start : start + self._n]
            abandoned = [choice for choice in of_prompt if choice.finish_reason is None]
            for choice in abandoned:
                choice.finish_reason = FinishReason.ABORT
                self._metrics.of(choice.engine).left()
            if not abandoned:
                self._metrics.of(of_prompt[0].engine).all_ended([choice.num_tokens for choice in of_prompt])

    def _observe(self, choice: _Progress, output: RequestOutput, now: float) -> None:
        new = len(output.token_ids)
        metrics = self._metrics.of(choice.engine)
        if output.timeline is not None:
            choice.timeline = then(choice.timeline, output.timeline)
        if choice.last_at is None and (new or output.finish_reason is not None):
            metrics.prompt_tokens += choice.num_prompt_tokens
            choice.num_cached_tokens = min(output.num_cached_tokens, choice.num_prompt_tokens)
            metrics.cached_tokens += choice.num_cached_tokens
            if new:
                metrics.first_token.observe(now - self._began)
            choice.last_at = now
        elif new and choice.last_at is not None:
            # Tokens that come together share the time since the last ones.
            metrics.inter_token.observe((now - choice.last_at) / new, new)
            choice.last_at = now
        choice.num_tokens += new
        metrics.generation_tokens += new
        if output.finish_reason is not None and choice.finish_reason is None:
            choice.finish_reason, choice.kv_ticket = output.finish_reason, output.kv_ticket
            choice.ended_at = now
            metrics.whole_request.observe(now - self._began)
            metrics.ended(output.finish_reason, choice.as_ended())


@asynccontextmanager
async def open_answer(
    engine: EngineClient,
    prompts: Sequence[Prompt],
    n: int,
    metrics: Metrics,
    deadline: Deadline | None = None,
    *,
    goes_on: bool = False,
    waits: bool = False,
) -> AsyncIterator[Answer]:
    """Starts the generation; leaving aborts what has not ended. Raises UnavailableError, having started nothing.

    `goes_on`, a further part of a request that runs, and `waits`: see `EngineClient.generate`.
    """
    async with engine.generate(prompts, deadline, goes_on=goes_on, waits=waits) as generation:
        answer = Answer(generation, prompts, n, metrics)
        metrics.requests.num_open += 1
        try:
            yield answer
        finally:
            metrics.requests.num_open -= 1
            answer.close()


def _failure(output: RequestOutput) -> TrillmError | None:
    if output.finish_reason is FinishReason.ERROR:
        return RequestFailedError(output.error or "The engine ended this request with an error")
    if output.finish_reason is FinishReason.ABORT:
        told = output.error or "The server ended this request before its answer was complete"
        return UnavailableError(told, code="aborted")
    return None


def _unended(output: RequestOutput) -> RequestOutput:
    """Its tokens alone: a reader who was slow finds them in one delta with the end."""
    return msgspec.structs.replace(output, finish_reason=None, stop_reason=None, error=None)
