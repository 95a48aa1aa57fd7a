"""From prompts to the response, plain or streamed, and one line about it in the log. Shared by chat and completions."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec
import trio
from quart import Response, g, request

from app.answer import Answer, open_answer
from app.connection import request_stack
from app.deadline import Deadline, deadline_of
from app.engine import Prompt
from app.services import Services
from app.stream import OPENAI, Chunks, Ending, stream_response
from protocol.errors import TrillmError

log = logging.getLogger("trillm.http")

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
    opened = open_logged_answer(services, prompts, n, g.request_id, request.path, deadline)
    if stream:
        answer = await request_stack(request).enter_async_context(opened)
        return stream_response(answer, write(answer), g.request_id, ending)
    async with opened as answer:
        whole = await write(answer).whole()
    return Response(_ENCODER.encode(whole), content_type="application/json")


@asynccontextmanager
async def open_logged_answer(
    services: Services, prompts: Sequence[Prompt], n: int, label: str, path: str, deadline: Deadline | None = None
) -> AsyncIterator[Answer]:
    """`open_answer`, with a line for each answer that was begun: a server that works slowly must not look dead."""
    began = trio.current_time()
    answer, status = None, "200"
    try:
        async with open_answer(services.engine, prompts, n, services.metrics, deadline) as answer:
            yield answer
    except TrillmError as error:
        status = str(error.status)
        raise
    except trio.Cancelled:
        status = "client left"
        raise
    finally:
        if answer is not None:
            used, ends = answer.usage(), ", ".join(answer.finish_reasons)
            seconds = trio.current_time() - began
            tokens = f"{used.prompt_tokens} + {used.completion_tokens} tokens"
            log.info("%s %s: %s, %s in %.2f s (%s)", label, path, status, tokens, seconds, ends)
