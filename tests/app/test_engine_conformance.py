"""The fake engine client does what the real one does."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from app.engine_client import ActorEngineClient
from protocol.errors import UnavailableError
from tests.helpers.app_under_test import make_tokenizer
from tests.helpers.engine_conformance import a_prompt, check_engine_client, check_refusal
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.memory_house import open_memory_house


async def test_the_real_client_over_the_actors_mains(checkpoint: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with open_memory_house(checkpoint) as house, trio.open_nursery() as nursery:
        client = ActorEngineClient(max_live_requests=100)
        nursery.start_soon(client.run, house)
        await client.attached_once.wait()
        await check_engine_client(client)
        nursery.cancel_scope.cancel()


async def test_the_real_client_when_its_queue_is_full(checkpoint: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with open_memory_house(checkpoint) as house, trio.open_nursery() as nursery:
        client = ActorEngineClient(max_live_requests=2)
        nursery.start_soon(client.run, house)
        await client.attached_once.wait()
        async with client.generate([a_prompt(max_tokens=1000)]):
            await check_refusal(client)
        nursery.cancel_scope.cancel()


async def test_the_fake() -> None:
    await check_engine_client(FakeEngine(make_tokenizer()))


async def test_the_fake_that_refuses() -> None:
    await check_refusal(FakeEngine(make_tokenizer(), refusal=UnavailableError("full")))
