"""Many short requests, some of whose clients leave: whatever grows with their number is a leak."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import attrs
import trio

from scripts.chaos_run.aftermath import Baseline, leave, settle
from scripts.chaos_run.bodies import Ask, asks
from scripts.chaos_run.client import Client, Manner, choose_manner
from scripts.chaos_run.processes import Footprint, footprints
from scripts.chaos_run.report import markdown
from scripts.chaos_run.run import record
from scripts.chaos_run.served import Recipe, Served, open_served

CLIENTS = 16
TOKENS = 6
MANNERS: dict[Manner, int] = {"reads": 90, "leaves": 5, "resets": 5}
PARTS = 10
"""The footprints are told after each; the first is for warming up."""
GROWTH_BYTES = 8 * 2**20
"""Of resident memory after the first part: an allocator's arenas, once."""
GROWTH_PER_REQUEST = 32
"""Bytes on top: less than a request's smallest struct that is not freed would take, over many of them."""
LAST = 3
"""Stages at the end of which the fewest descriptors count: a connection that is just being closed is in one of them."""
MORE_DESCRIPTORS = 1
"""What is opened late, once. A leak has as many more as requests."""
SETTLE_SECONDS = 15.0


@attrs.frozen
class Stage:
    """How things stand when so many requests have been answered and nobody asks."""

    requests: int
    seconds: float
    footprints: dict[str, Footprint]
    gauges: dict[str, float]


@attrs.frozen
class Soaked:
    stages: list[Stage]
    complaints: list[str]


async def soak(recipe: Recipe, requests: int, seed: int) -> Soaked:
    """Raises ServedFailedError, BrokenAnswerError and OSError."""
    asked = asks(TOKENS, long_prompt_lines=4)
    complaints: list[str] = []
    stages: list[Stage] = []
    expected = await record(recipe, asked)
    async with open_served(recipe) as served:
        await one_part(served, expected, asked, 4 * CLIENTS, f"{seed} first", complaints)
        baseline = Baseline.of(served)
        began = trio.current_time()
        for part in range(PARTS):
            await one_part(served, expected, asked, requests // PARTS, f"{seed} {part}", complaints)
            complaints += await settle(served, baseline, SETTLE_SECONDS)
            stages.append(await stage(served, (part + 1) * (requests // PARTS), trio.current_time() - began))
        complaints += growths(stages)
        complaints += await leave(served, baseline)
    return Soaked(stages, complaints)


async def one_part(
    served: Served,
    expected: dict[str, dict[str, Any]],
    asked: list[Ask],
    requests: int,
    name: str,
    complaints: list[str],
) -> None:
    numbers = iter(range(requests))

    async def work(index: int) -> None:
        client = Client(served.port, expected, random.Random(f"soak {name} {index}"))
        for _ in numbers:  # all clients share them
            chance = client.random
            manner = choose_manner(chance, MANNERS)
            # Few different grammars: a soak of the checkers would be another one.
            outcome = await client.ask(chance.choice(asked), chance.randrange(20), manner)
            if outcome.verdict not in ("equal", "left"):
                complaints.append(f"{outcome.ask}: {outcome.detail}")

    async with trio.open_nursery() as nursery:
        for index in range(CLIENTS):
            nursery.start_soon(work, index)


async def stage(served: Served, requests: int, seconds: float) -> Stage:
    gauges = await served.gauges()
    told = {name: gauges[name] for name in ("requests_live", "kv_cache_usage_perc")}
    return Stage(requests, seconds, footprints(served.pid), told)


def growths(stages: list[Stage]) -> Iterator[str]:
    """What grew from the first part's end to the last's."""
    first, last = stages[0], stages[-1]
    for name, now in last.footprints.items():
        before = first.footprints[name]
        grown = now.rss_bytes - before.rss_bytes
        allowed = GROWTH_BYTES + GROWTH_PER_REQUEST * (last.requests - first.requests)
        if grown > allowed:
            yield f"{name} grew by {grown / 2**20:.1f} MiB over {last.requests - first.requests} requests"
        fewest = min(stage.footprints[name].less_children() for stage in stages[-LAST:])
        if fewest > before.less_children() + MORE_DESCRIPTORS:
            yield f"{name} has {now.descriptors} descriptors, and had {before.descriptors}"


def table(result: Soaked) -> str:
    names = list(result.stages[0].footprints)
    header = ["requests", "seconds", *(f"{name}: MiB, descriptors, threads" for name in names), "live", "blocks used"]
    rows = [
        [
            f"{stage.requests:,}",
            f"{stage.seconds:.0f}",
            *(
                f"{held.rss_bytes / 2**20:.1f}, {held.descriptors}, {held.threads}"
                for held in map(stage.footprints.__getitem__, names)
            ),
            f"{stage.gauges['requests_live']:g}",
            f"{stage.gauges['kv_cache_usage_perc']:.0%}",
        ]
        for stage in result.stages
    ]
    return markdown(header, rows)
