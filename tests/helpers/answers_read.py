"""Many answers at once, streamed and whole, each read to its one end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from scripts.chaos_run.answer import Told
from tests.helpers.server import Server

COMPLETIONS = "/v1/completions"


async def read(server: Server, body: dict[str, Any], told: Told) -> None:
    """Every second body is better streamed: `stream` in it says so."""
    async with server.client() as http:
        if not body.get("stream"):
            reply = await http.post(COMPLETIONS, json=body)
            assert reply.status_code == 200, reply.text
            told.take_whole(reply.json())
        else:
            body = body | {"stream_options": {"include_usage": True}}
            async with http.stream("POST", COMPLETIONS, json=body) as reply:
                assert reply.status_code == 200
                async for data in reply.aiter_bytes():
                    told.feed(data)
    assert told.complaint() is None, (body, told.complaint())


@asynccontextmanager
async def answers(server: Server, bodies: Sequence[dict[str, Any]]) -> AsyncIterator[list[Told]]:
    """All have been asked inside, and are there afterwards, each with one end and no error."""
    told = [Told() for _ in bodies]
    async with trio.open_nursery() as nursery:
        for body, one in zip(bodies, told, strict=True):
            nursery.start_soon(read, server, body, one)
        yield told


def comparable(told: Sequence[Told]) -> list[dict[str, Any]]:
    return [one.comparable() for one in told]
