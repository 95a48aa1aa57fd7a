"""From prompts to the response, plain or streamed, and what the logs have of it. Shared by all APIs that generate."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec
import trio
from quart import Response, request

from app.access_log import Access, access_of
from app.answer import Answer, open_answer
from app.connection import request_stack
from app.deadline import Deadline, deadline_of
from app.ending import OPENAI, Ending
from app.engine import Prompt
from app.services import Services
from app.stream import Chunks, stream_response
from app.tracing.request_trace import current_trace

MANY_CHOICES = 64
"""Taken in at once in about a millisecond."""
_ENCODER = msgspec.json.Encoder()


class Writer(Chunks, Protocol):
    """How one kind of answer is told."""

    async def whole(self) -> msgspec.Struct:
        """The body of a plain answer, once every choice has ended."""
        ...


async def respond(
    services: Services,
    prompts: Sequence[Prompt],
    n: int,
    stream: bool,
    write: Callable[[Answer], Writer],
    deadline: Deadline | None = None,
    ending: Ending = OPENAI,
) -> Response:
    """Generates `n` choices for each prompt. Raises UnavailableError, and what the plain answer fails with.

    `deadline`: None is the server's own, from now on.
    """
    deadline = deadline or deadline_of(None, services.limits)
    if len(prompts) > MANY_CHOICES:
        await trio.lowlevel.checkpoint()  # others had to wait while these were checked, and will while they are sent
    access = access_of(request)
    services.request_log.tell(access.label, prompts, n, stream, services.tokenizer)
    opened = open_logged_answer(services, prompts, n, access, deadline)
    if stream:
        answer = await request_stack(request).enter_async_context(opened)
        return stream_response(answer, write(answer), access, ending, services.keep_alive_seconds)
    async with opened as answer:
        whole = await write(answer).whole()
    return Response(_ENCODER.encode(whole), content_type="application/json")


@asynccontextmanager
async def open_logged_answer(
    services: Services,
    prompts: Sequence[Prompt],
    n: int,
    access: Access,
    deadline: Deadline | None = None,
    *,
    goes_on: bool = False,
    waits: bool = False,
) -> AsyncIterator[Answer]:
    """`open_answer`, and what became of it in the request's line of the access log."""
    trace, began = current_trace.get(), time.monotonic()
    if trace is not None:
        trace.note_prompts(prompts, n)
    opened = open_answer(services.engine, prompts, n, services.metrics, deadline, goes_on=goes_on, waits=waits)
    async with opened as answer:
        try:
            yield answer
        finally:
            used = answer.usage()
            access.num_prompt_tokens += used.prompt_tokens
            access.num_tokens += used.completion_tokens
            access.finish = ",".join(answer.finish_reasons) or "-"
            if trace is not None and trace.is_recorded:
                trace.note_generation(began, answer.sequences(time.monotonic() - trio.current_time()))
