"""The default model with KV connectors: what is loaded is what was computed, to the last bit that decides a token."""

from __future__ import annotations

import pytest

from tests.end_to_end.test_prefill_decode import ROLES, until_whole
from tests.helpers.kv_servers import ask, until_told
from tests.helpers.server import open_default_model

pytestmark = [pytest.mark.process, pytest.mark.model]

SMALL = ("--num-gpu-blocks-override", "14", "--max-model-len", "192", "--max-num-seqs", "2", "--no-engine-standby")
"""Two prompts do not fit into a pool."""


def prompt(number: int) -> dict:
    """About 130 tokens."""
    text = (
        f"Story {number}. " + "The harbour was quiet when the first boats came home, and a thin mist hung there. " * 6
    )
    return {"prompt": text, "max_tokens": 8, "temperature": 0}


def loaded(told: dict[str, float], engine: int) -> float:
    """Tokens."""
    return told.get(f'vllm:external_prefix_cache_hits_total{{engine="{engine}"}}', 0)


async def test_texts_are_the_same_with_and_without_also_when_engines_are_killed():
    async with open_default_model(*SMALL) as server, server.client() as http:
        texts = [(await ask(http, prompt(number))).text for number in range(3)]
    async with open_default_model(*SMALL, *ROLES, "--kv-offloading-size", "0.5") as server, server.client() as http:
        await until_whole(server)
        for dies in (False, True):
            if dies:
                for victim in ("engine-0", "engine-1"):
                    await server.kill(victim)
                await until_whole(server)
            for number in range(3):
                told = await ask(http, prompt(number))
                assert told.text == texts[number]
                assert told.num_cached > 100 or not dies
        # Until the deaths it was computed in one engine and loaded by the other, afterwards by both.
        await until_told(server, lambda told: min(loaded(told, 0), loaded(told, 1)) >= 3 * 112)
        assert not any("Traceback" in line for line in server.log), server.log
