"""The requests of `trillm bench`: each at its time, so many at once as may be. Used by app/commands/bench.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

import attrs
import msgspec
import trio

from app.api_client.call_error import NoAnswerError, RefusedError
from app.api_client.client import ApiClient
from app.api_client.models import chosen_model
from app.commands.bench_call import Form, Outcome, call
from app.commands.bench_prompts import NO_VOCABULARY, TEXT, WORDS, Prompt, Vocabulary
from protocol.errors import OperationFailedError

READY_SECONDS = 1.0
"""Between two looks whether the server is up."""
LEAST_IDS = 16
"""Fewer tell that words are no tokens there."""


class _Tokens(msgspec.Struct):
    tokens: list[int]


@attrs.define
class Load:
    """What happened so far."""

    outcomes: list[Outcome] = attrs.field(factory=list)
    """Of requests that have ended, in their order."""
    running: list[Outcome] = attrs.field(factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """That this process took meanwhile."""

    @property
    def num_tokens(self) -> int:
        """So far. Those of unfinished answers are counted as events with text."""
        return sum(outcome.num_output_tokens for outcome in (*self.outcomes, *self.running))

    @property
    def num_failed(self) -> int:
        return sum(bool(outcome.error) for outcome in self.outcomes)


async def find_server(client: ApiClient, model: str | None, seconds: float) -> str:
    """The model to ask, once the server is ready, for which there are so many seconds. Raises NoAnswerError,
    RefusedError (at once for a key that it does not take) and NotFoundError."""
    deadline = trio.current_time() + seconds
    while True:
        try:
            found = await chosen_model(client, model)
            await _check_ready(client)
            return found
        except (NoAnswerError, RefusedError) as error:
            is_key_wrong = isinstance(error, RefusedError) and error.answered in (401, 403)
            if is_key_wrong or trio.current_time() >= deadline:
                raise
        await trio.sleep(READY_SECONDS)


async def _check_ready(client: ApiClient) -> None:
    """By trillm's /ready; other servers have none, and tell their models only when they are. Raises RefusedError."""
    try:
        await client.ask("GET", "/ready")
    except RefusedError as error:
        if error.answered == 503:
            raise RefusedError(f"{error.message} (--ready-check-timeout-sec 60 waits for it)", 503) from error


async def find_vocabulary(client: ApiClient, model: str, *, takes_ids: bool) -> Vocabulary:
    """By the server's /tokenize, in trillm's and vLLM's form. `takes_ids`: prompts may be token ids."""
    body = {"model": model, "prompt": TEXT, "add_special_tokens": False}
    try:
        tokens = (await client.post("/tokenize", body, _Tokens)).tokens
    except (NoAnswerError, RefusedError):
        return NO_VOCABULARY
    ids = sorted(set(tokens))
    if len(ids) < LEAST_IDS:
        return NO_VOCABULARY
    return Vocabulary(ids if takes_ids else [], len(tokens) / len(WORDS))


async def warm_up(client: ApiClient, form: Form, prompts: list[Prompt]) -> None:
    """One after another. Raises OperationFailedError with what went wrong: the others would fail as well."""
    for prompt in prompts:
        start = trio.current_time()
        outcome = Outcome(0.0)
        await call(client, form, prompt, outcome, start)
        if outcome.error:
            raise OperationFailedError(f"the first request has failed: {outcome.error}")


async def run_load(
    client: ApiClient,
    form: Form,
    prompts: list[Prompt],
    arrivals: list[float],
    max_concurrency: int | None,
    load: Load,
    cpu_clock: Callable[[], float] = time.process_time,
) -> None:
    """Until all have ended. `load` tells at any time what happened so far, also after it was cancelled."""
    start, cpu = trio.current_time(), cpu_clock()
    turns = nullcontext() if max_concurrency is None else trio.Semaphore(max_concurrency)

    async def send(prompt: Prompt, planned_at: float) -> None:
        async with turns:
            outcome = Outcome(planned_at)
            load.running.append(outcome)
            try:
                await call(client, form, prompt, outcome, start)
                load.outcomes.append(outcome)
            finally:
                load.running.remove(outcome)

    try:
        async with trio.open_nursery() as nursery:
            for prompt, planned_at in zip(prompts, arrivals, strict=True):
                await trio.sleep_until(start + planned_at)
                nursery.start_soon(send, prompt, planned_at)
    finally:
        load.seconds = trio.current_time() - start
        load.cpu_seconds = cpu_clock() - cpu
