"""A server whose engine keeps its KV beyond its own pool: what was computed once is found again, whoever has died."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio

from tests.end_to_end.test_several_engines import GREEDY, SEEDED, SLOW, open_tiny, streams
from tests.helpers.kv_servers import (
    STOPPED_SECONDS,
    Told,
    actors,
    ask,
    descriptors,
    frames,
    is_at_rest,
    mapped_windows,
    shared_memory,
    until_restarted,
    until_told,
)
from tests.helpers.server import Server, open_server
from tests.helpers.tiny_checkpoints import make_checkpoint

pytestmark = pytest.mark.process

OFFLOAD = ("--kv-offloading-size", "0.01")
SMALL = ("--num-gpu-blocks-override", "40")
"""Of 16 tokens: a prompt of 400 is evicted by two others."""
LENGTH = 400
WHOLE = 384
"""Of these, those in full blocks, but for the last one: it has to be computed."""
BODIES = [body | {"ignore_eos": True, "max_tokens": 60} for body in (*GREEDY, *SEEDED)]
"""They do not fit into the pool all at once: some are put off and go on later."""
HITS = 'vllm:external_prefix_cache_hits_total{engine="0"}'


def prompt(number: int, max_tokens: int = 4) -> dict:
    """A long one that has no beginning in common with others."""
    tokens = [50 + (number * 7 + place * place) % 400 for place in range(LENGTH)]
    return {"prompt": tokens, "max_tokens": max_tokens, "temperature": 0, "logprobs": 2}


async def evict(http: httpx.AsyncClient, first: int = 10) -> None:
    """Have the pool give up all that it had."""
    for number in range(first, first + 3):
        assert (await ask(http, prompt(number))).num_cached in (0, WHOLE)


async def found(http: httpx.AsyncClient, number: int = 1) -> Told:
    return await ask(http, prompt(number))


@asynccontextmanager
async def open_offloading(checkpoint: Path, *flags: str) -> AsyncIterator[Server]:
    async with open_server(checkpoint, *OFFLOAD, *SMALL, *flags) as server:
        yield server


async def check_that_one_that_is_stopped_is_waited_for_once(server: Server, http: httpx.AsyncClient) -> None:
    """And not for long."""
    first = await found(http)
    await evict(http)
    stopped = server.children()["kv-0"]
    os.kill(stopped, signal.SIGSTOP)
    began = trio.current_time()
    with trio.fail_after(STOPPED_SECONDS):
        told = await found(http)
    assert (told.choices, told.num_cached) == (first.choices, 0)
    assert trio.current_time() - began > 1, "it has waited"
    with trio.fail_after(1):  # nobody waits for it a second time
        await evict(http)
        assert (await found(http)).choices == first.choices
    os.kill(stopped, signal.SIGCONT)
    with trio.fail_after(10):
        while (told := await found(http)).num_cached == 0:
            await evict(http)
    assert told.choices == first.choices
    await until_told(server, is_at_rest)
    assert server.children()["kv-0"] == stopped
    assert not any("Traceback" in line for line in server.log), server.log


async def test_what_the_pool_has_evicted_is_found_until_it_is_to_be_forgotten_or_nobody_answers(checkpoint):
    async with open_offloading(checkpoint) as server, server.client() as http:
        first = await found(http)
        assert first.num_cached == 0
        await evict(http)
        again = await found(http)
        assert (again.choices, again.num_cached) == (first.choices, WHOLE)
        assert (await http.post("/reset_prefix_cache")).json() == {"success": True}
        assert (await found(http)).num_cached == WHOLE
        await until_told(server, lambda told: told.get(HITS) == 2 * WHOLE)
        told: dict[str, float] = {}

        def is_counted(now: dict[str, float]) -> bool:
            told.update(now)
            return is_at_rest(now) and now.get('trillm:kv_found_blocks_total{engine="0",tier="memory"}') == 2 * 24

        await until_told(server, is_counted)
        assert told['trillm:kv_saved_blocks_total{engine="0"}'] == frames(told)["held"] == 4 * 25
        assert told['vllm:external_prefix_cache_queries_total{engine="0"}'] == 6 * WHOLE
        assert told['trillm:kv_queried_blocks_total{engine="0",tier="memory"}'] == 6 * 24

        reset = await http.post("/reset_prefix_cache", params={"reset_external": "true"})
        assert reset.json() == {"success": True}
        forgotten = await found(http)
        assert (forgotten.choices, forgotten.num_cached) == (first.choices, 0)
        assert (await http.get("/ready")).json()["actors"][1]["name"] == "kv-0"
        await check_that_one_that_is_stopped_is_waited_for_once(server, http)


async def ask_many(server: Server, first: int = 0) -> None:
    async with server.client() as http:
        for number in range(first, first + 5):
            while (await http.post("/v1/completions", json=prompt(number))).status_code == 503:
                await trio.sleep(0.05)  # no engine is there just now


async def held(server: Server) -> dict[str, int]:
    """Descriptors of each process, once nothing runs."""
    await until_told(server, is_at_rest)
    counts = {name: descriptors(pid) for name, pid in server.children().items()}
    return counts | {"server": descriptors(server.pid)}


async def check_held(server: Server, baseline: dict[str, int]) -> None:
    """Nothing is left of requests and of those who died."""
    await ask_many(server)
    with trio.move_on_after(10):
        while (counts := await held(server)) != baseline:
            await trio.sleep(0.1)
    assert counts == baseline
    assert mapped_windows(server.children()["engine-0"]) == 1
    assert mapped_windows(server.children()["kv-0"]) == 1


async def test_whoever_is_killed_takes_no_answer_and_no_block_with_it_and_leaves_nothing(checkpoint):
    async with open_server(checkpoint, *SMALL, *SLOW) as plain, streams(plain, BODIES) as expected:
        pass
    before = shared_memory()
    async with open_offloading(checkpoint, *SLOW) as server, server.client() as http:
        first = await found(http)
        await ask_many(server)
        assert shared_memory() == before
        baseline = await held(server)

        async with trio.open_nursery() as nursery, streams(server, BODIES) as texts:
            for number in range(0, 50, 5):
                nursery.start_soon(ask_many, server, number)
            await server.kill("engine-0")
            await server.until_ready()
            again = await found(http)
            assert (again.choices, again.num_cached) == (first.choices, WHOLE)
        assert texts == expected
        await check_held(server, baseline)

        async with trio.open_nursery() as nursery, streams(server, BODIES) as texts:
            for number in range(0, 50, 5):
                nursery.start_soon(ask_many, server, number)
            for times in (1, 2):
                await server.kill("kv-0")
                await until_restarted(server, "kv-0", times)
        assert texts == expected
        assert (await actors(http))["engine-0"]["restarts"] == 1
        again = await found(http)
        assert again.choices == first.choices
        await evict(http, 60)
        again = await found(http)
        assert (again.choices, again.num_cached) == (first.choices, WHOLE)
        await check_held(server, baseline)
        assert shared_memory() == before
        assert not any("Traceback" in line for line in server.log), server.log


def has_blocks(told: dict[str, float], least: int = 1) -> bool:
    return told.get('trillm:kv_disk_blocks{engine="0"}', 0) >= least


async def test_with_a_directory_it_is_found_after_deaths_and_restarts_until_it_is_to_be_forgotten(checkpoint, tmp_path):
    directory = tmp_path / "blocks"
    flags = ("--kv-offloading-path", str(directory))
    async with open_offloading(checkpoint, *flags) as server, server.client() as http:
        first = await found(http)
        await evict(http)
        await until_told(server, lambda told: has_blocks(told, 100))
        await server.kill("kv-0")
        await until_restarted(server, "kv-0")
        await until_told(server, lambda told: has_blocks(told, 100))
        again = await found(http)
        assert (again.choices, again.num_cached) == (first.choices, WHOLE)
        second = await found(http, 2)  # right before the end
    async with open_offloading(checkpoint, *flags) as server, server.client() as http:
        await until_told(server, has_blocks)
        for number, before in ((1, first), (2, second)):
            again = await found(http, number)
            assert (again.choices, again.num_cached) == (before.choices, WHOLE)
        await until_told(
            server, lambda told: told.get('trillm:kv_found_blocks_total{engine="0",tier="disk"}') == 2 * 24
        )
        reset = await http.post("/reset_prefix_cache", params={"reset_external": "true"})
        assert reset.json() == {"success": True}
    async with open_offloading(checkpoint, *flags) as server, server.client() as http:
        again = await found(http)
        assert (again.choices, again.num_cached) == (first.choices, 0)


TINY = ("--block-size", "4")
"""With 100 blocks."""


def tiny_prompt(number: int) -> dict:
    text = f"{number} The quick brown fox jumps over the lazy dog. "
    return {"prompt": text * 4, "max_tokens": 20, "temperature": 0, "ignore_eos": True}


async def test_each_of_two_ranks_finds_its_part_also_when_they_were_killed(tmp_path):
    make_checkpoint(tmp_path)
    async with open_tiny(tmp_path, *TINY, *OFFLOAD, "-tp", "2") as server, server.client() as http:
        computed = [await ask(http, tiny_prompt(number)) for number in range(4)]
        assert [told.num_cached for told in computed] == [0] * 4
        for dies in (False, True):
            if dies:
                await server.kill("rank-0.1")
                await until_restarted(server, "engine-0")
            for number in range(4):
                told = await ask(http, tiny_prompt(number))
                assert told.text == computed[number].text
                assert told.num_cached > 100
        assert not any("Traceback" in line for line in server.log), server.log
