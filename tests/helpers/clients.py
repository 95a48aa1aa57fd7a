"""The engine client over the actors' mains, and a way to read answers whole."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from app.deadline import Deadline
from app.engine import Prompt
from app.engine_client import ActorEngineClient
from app.roles import Roles
from tests.helpers.memory_house import open_memory_house


@asynccontextmanager
async def open_client(
    checkpoint: Path,
    max_live: int = 100,
    max_queue_seconds: float = math.inf,
    roles: Roles | None = None,
    **fields: object,
) -> AsyncIterator[tuple]:
    async with open_memory_house(checkpoint, **fields) as house, trio.open_nursery() as nursery:
        client = ActorEngineClient(
            max_live_requests=max_live, max_queue_seconds=max_queue_seconds, clock=trio.current_time, roles=roles
        )
        nursery.start_soon(client.run, house)
        await client.attached_once.wait()
        yield client, house, nursery
        nursery.cancel_scope.cancel()


async def collect(client: ActorEngineClient, *prompts: Prompt, deadline: Deadline | None = None) -> list[tuple]:
    """Text, token ids, log-probabilities (or the embedding) and finish reason of each prompt."""
    texts, ids, ends = [""] * len(prompts), [[] for _ in prompts], [None] * len(prompts)
    logprobs = [[] for _ in prompts]
    async with client.generate(prompts, deadline) as generation:
        while not generation.finished:
            for index, output in await generation.receive():
                assert output.offset == len(ids[index]), "deltas are contiguous"
                assert ends[index] is None, "nothing comes after the end"
                texts[index] += output.text
                ids[index] += output.token_ids
                logprobs[index] += [output.prompt_logprobs] * (output.prompt_logprobs is not None)
                logprobs[index] += output.logprobs or []
                logprobs[index] += [output.embedding] * (output.embedding is not None)
                ends[index] = output.finish_reason
    return list(zip(texts, ids, logprobs, ends, strict=True))
