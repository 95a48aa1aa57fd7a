"""The chaos run: right answers first, then many clients beside an injector, then everything is compared."""

from __future__ import annotations

import random
from typing import Any

import attrs
import trio

from scripts.chaos_run import processes
from scripts.chaos_run.aftermath import Baseline, leave, settle
from scripts.chaos_run.answer import Told
from scripts.chaos_run.bodies import Ask, asks
from scripts.chaos_run.client import Client, Outcome, choose_manner
from scripts.chaos_run.exchange import BrokenAnswerError, as_json, open_exchange
from scripts.chaos_run.injector import Injected, Injector
from scripts.chaos_run.plan import KINDS, Kind, plan
from scripts.chaos_run.processes import Footprint, footprints
from scripts.chaos_run.served import Recipe, Served, open_served

FINISH_SECONDS = 240.0
"""How long after the last injection the last answers may take."""


@attrs.frozen
class Course:
    """What is asked of a run."""

    seconds: float
    seed: int
    streams: int = 32
    tokens: int = 120
    """Of an answer, about."""
    long_prompt_lines: int = 30
    patience: float = 8.0
    """Seconds of silence for which no injection is needed: a busy machine, a queue, a prefill."""
    every: float = 4.0
    """Seconds between injections, on average."""


@attrs.frozen
class Result:
    """What a run found. It has failed if there are any complaints."""

    course: Course
    restart_seconds: float
    """What an actor's restart was reckoned with, from how long the server took to start."""
    injected: list[Injected]
    outcomes: list[Outcome]
    before: dict[str, Footprint]
    after: dict[str, Footprint]
    complaints: list[str]


async def record(recipe: Recipe, asked: list[Ask]) -> dict[str, dict[str, Any]]:
    """The answers to all of them, each asked alone, of a server that is not injured: a dummy model takes no time for
    its steps there. Raises ServedFailedError, BrokenAnswerError and OSError."""
    async with open_served(attrs.evolve(recipe, step_seconds=0.0)) as served:
        return await record_from(served, asked)


async def record_from(served: Served, asked: list[Ask]) -> dict[str, dict[str, Any]]:
    found = {}
    for number, ask in enumerate(asked):
        told = Told()
        async with open_exchange(served.port) as exchange:
            await exchange.send("POST", ask.path, ask.numbered(-number))
            data = await exchange.receive_all()
        if exchange.status != 200:
            raise BrokenAnswerError(f"{ask.name}: {exchange.status} {data[:300]!r}")
        if ask.stream:
            told.feed(data)
        else:
            told.take_whole(as_json(data))
        if wrong := told.complaint():
            raise BrokenAnswerError(f"{ask.name}: {wrong}")
        found[ask.name] = told.comparable()
    return found


async def run(recipe: Recipe, course: Course) -> Result:
    """Raises ServedFailedError, BrokenAnswerError and OSError if it does not get as far as a result."""
    asked = asks(course.tokens, course.long_prompt_lines)
    expected = await record(recipe, asked)
    async with open_served(recipe) as served:
        restart_seconds = 3 * served.ready_seconds + 4
        complaints = await warm_up(served, course, expected, asked)
        baseline = Baseline.of(served)
        injector = Injector(
            served, random.Random(f"injector {course.seed}"), client_of(served, course, expected, "resets"), asked
        )
        outcomes: list[Outcome] = []
        planned = plan(course.seed, course.seconds, restart_seconds, course.every, kinds_for(served))
        with trio.move_on_after(course.seconds + FINISH_SECONDS) as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(injector.run, planned)
                for index in range(course.streams):
                    client = client_of(served, course, expected, f"client {index}")
                    nursery.start_soon(ask_until, client, asked, trio.current_time() + course.seconds, outcomes)
        complaints += injector.complaints
        if limit.cancelled_caught:
            complaints.append(f"answers were still missing {FINISH_SECONDS:.0f} s after the last injection")
        complaints += await settle(served, baseline)
        after = footprints(served.pid)
        complaints += await leave(served, baseline)
    complaints += [f"{o.ask} ({o.manner}): {o.detail}" for o in outcomes if o.verdict in ("differs", "failed")]
    complaints += too_silent(outcomes, injector.done, course.patience, restart_seconds)
    return Result(course, restart_seconds, injector.done, outcomes, dict(baseline.footprints), after, complaints)


def kinds_for(served: Served) -> list[Kind]:
    """Without those whose victims this server does not have. (Grammar checkers come when they are needed.)"""
    there = ["server", "grammar-0", *processes.actors(served.pid)]
    return [kind for kind in KINDS if all(any(name.startswith(v) for name in there) for v in kind.victims)]


def client_of(served: Served, course: Course, expected: dict[str, dict[str, Any]], name: str) -> Client:
    return Client(served.port, expected, random.Random(f"{name} of {course.seed}"))


async def warm_up(served: Served, course: Course, expected: dict[str, dict[str, Any]], asked: list[Ask]) -> list[str]:
    """Everything once, all at once, so that what is needed for that is there; what was not answered rightly."""
    client, outcomes = client_of(served, course, expected, "warm-up"), list[Outcome]()

    async def once(ask: Ask, number: int) -> None:
        outcomes.append(await client.ask(ask, number, "reads"))

    async with trio.open_nursery() as nursery:
        for number, ask in enumerate(asked):
            nursery.start_soon(once, ask, number)
    return [f"undisturbed, {o.ask}: {o.detail}" for o in outcomes if o.verdict != "equal"]


async def ask_until(client: Client, asked: list[Ask], deadline: float, outcomes: list[Outcome]) -> None:
    """One request after the other; the last is read to its end."""
    while trio.current_time() < deadline:
        ask = client.random.choice(asked)
        outcome = await client.ask(ask, client.random.randrange(10**9), choose_manner(client.random))
        outcomes.append(outcome)
        if outcome.verdict == "failed":
            await trio.sleep(0.5)  # lest a server that is gone is asked a thousand times a second


def too_silent(outcomes: list[Outcome], done: list[Injected], patience: float, restart_seconds: float) -> list[str]:
    """Silences that what was injected meanwhile does not excuse."""
    complaints = []
    for outcome in outcomes:
        for start, end in outcome.gaps:
            meanwhile = [
                one.injection.silence(restart_seconds)
                for one in done
                if one.at <= end and one.until + one.injection.silence(restart_seconds) >= start
            ]
            if end - start > patience + sum(meanwhile):
                excused = f"{patience:.0f} + {sum(meanwhile):.1f}"
                complaints.append(f"{outcome.ask} was silent for {end - start:.1f} s; allowed were {excused} s")
    return complaints
