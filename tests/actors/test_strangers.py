"""Messages that are not from us but decode: each actor ignores or refuses them, and streams say what they say alone.

Over the actors' mains in virtual time; over real sockets in tests/end_to_end/test_strangers.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from app.engine import Prompt
from app.engine_client import ActorEngineClient
from protocol.ids import EngineIndex
from protocol.sampling import SamplingParams
from tests.helpers.clients import collect, open_client
from tests.helpers.intruder import decodable
from tests.helpers.memory_house import MemoryHouse

COUNT = 1500
PROMPTS = [Prompt([5, 6, number], SamplingParams(max_tokens=40, seed=number, logprobs=1)) for number in range(4)]


async def strangers_say(house: MemoryHouse, name: str, seed: int) -> None:
    engine = house._engines[0]
    epoch = engine.epoch
    for number, message in enumerate(decodable(name, epoch, COUNT, seed)):
        match name:
            case "ENGINE_INPUT":
                engine.inputs.send_nowait(message)
            case "OUTPUT_INPUT":
                house.send_to_output(message)
            case "APP_INPUT":
                house._app.send_nowait(message)
            case "ENGINE_OUTPUT":
                engine.client._deliver(message)
        if number % 10 == 0:
            await trio.sleep(0.01)


async def answers(client: ActorEngineClient) -> list[object]:
    with trio.fail_after(600):
        return await collect(client, *PROMPTS)


@pytest.mark.parametrize("seed", [0, 10**6])
@pytest.mark.parametrize("name", ["ENGINE_INPUT", "OUTPUT_INPUT", "APP_INPUT", "ENGINE_OUTPUT"])
async def test_what_strangers_say_ends_nobody_and_changes_no_stream(
    checkpoint: Path, autojump_clock: trio.testing.MockClock, name: str, seed: int
) -> None:
    async with open_client(checkpoint, dummy_step_seconds=0.05) as (client, house, _):
        alone = await answers(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(strangers_say, house, name, seed)
            assert await answers(client) == alone
        await trio.sleep(20)
        assert await answers(client) == alone
        assert client.num_requests == 0
        state = await client.engine_state(EngineIndex(0))
        assert state.request_ids == []
        assert state.stats.kv_blocks_used == 0
