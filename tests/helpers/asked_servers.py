"""A client of the API before a server that does as a test says, over streams in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from app.api_client.client import ApiClient
from app.api_client.place import Place
from tests.helpers.fake_upstreams import FakeUpstream, MemoryNetwork, Script, Talk

HOST = "server"


def place(key: str | None = None, prefix: str = "") -> Place:
    return Place("http", HOST, 8000, prefix, key=key)


@asynccontextmanager
async def open_network(script: Script) -> AsyncIterator[tuple[MemoryNetwork, FakeUpstream]]:
    """Of one server; what of its connections is open in the end is closed."""
    server = FakeUpstream(script)
    async with trio.open_nursery() as nursery:
        yield MemoryNetwork({HOST: server}, nursery), server
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_client(script: Script, **options: Any) -> AsyncIterator[tuple[ApiClient, FakeUpstream]]:
    where = options.pop("place", place())
    async with open_network(script) as (network, server), ApiClient(where, backend=network, **options) as client:
        yield client, server


def chunk(text: str = "", **more: Any) -> bytes:
    """An event of a chat."""
    finish = more.pop("finish_reason", None)
    choices = [{"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices} | more).encode() + b"\n\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def lists_models(talk: Talk) -> None:
    await talk.whole({"object": "list", "data": [{"id": "first", "object": "model"}, {"id": "second"}]})


def serves(*events: bytes, models: Script = lists_models) -> Script:
    """A list of models, and these events for everything that is posted."""

    async def serve(talk: Talk) -> None:
        if talk.received.method == "GET":
            await models(talk)
        else:
            await talk.events(b"".join(events))

    return serve
