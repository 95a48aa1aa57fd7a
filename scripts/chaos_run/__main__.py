"""The command line of scripts/chaos."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import attrs
import trio
from cyclopts import App, Parameter

from scripts.chaos_run import endings, report, restarts, soak
from scripts.chaos_run.exchange import BrokenAnswerError
from scripts.chaos_run.run import Course, run
from scripts.chaos_run.served import Recipe, ServedFailedError

FIRST_COMPLAINTS = 10

app = App(
    name="scripts/chaos",
    help="""Injure a running server at random, while clients compare what they get with what they should get.

    Every request of the run was asked once beforehand, alone and undisturbed. Whatever is injected, each client must
    get the same text, log-probabilities and usage again, with one end and no error; and afterwards nothing may be left
    of it all. Exit status 1, and the first failing requests, if that does not hold.
    """,
)


@app.default
def main(
    *,
    minutes: float = 1.0,
    seed: int = 0,
    model: str | None = None,
    real: bool = False,
    streams: int = 32,
    tokens: int = 120,
    every: float = 4.0,
    patience: float = 8.0,
    step_seconds: float = 0.02,
    serve_arguments: Annotated[str, Parameter(allow_leading_hyphen=True)] = "",
    soak: int | None = None,
    restarts: int | None = None,
    endings: int | None = None,
    output: Path | None = None,
) -> int:
    """Run.

    Parameters
    ----------
    minutes
        How long injuries are inflicted.
    seed
        What is injected when, and what the clients ask; the same seed, the same plan.
    model
        As `trillm serve` takes it.
    real
        Compute with the model's weights; else a dummy model over its tokeniser.
    streams
        Clients at once.
    tokens
        Length of an answer.
    every
        Seconds between injections, on average.
    patience
        Seconds of silence in a stream for which no injection is needed as an excuse.
    step_seconds
        How long a step of the dummy model takes.
    serve_arguments
        More flags for `trillm serve`, as one text.
    soak
        Instead: so many short requests, after which nothing may have grown.
    restarts
        Instead: kill -9 of the engine so many times under one stream, and how long until it goes on.
    endings
        Instead: end the whole service so many times in each way that there is, under streams.
    output
        Where the result is written as JSON.
    """
    recipe = Recipe(model, real, step_seconds, shlex.split(serve_arguments))
    course = Course(minutes * 60, seed, streams, tokens, patience=patience, every=every)
    if soak is not None:
        work = partial(soaked, recipe, soak, seed)
    elif restarts is not None:
        work = partial(restarted, recipe, restarts)
    elif endings is not None:
        work = partial(ended, recipe, endings)
    else:
        work = partial(injured, recipe, course)
    try:
        record, complaints = trio.run(guarded, work)
    except ServedFailedError as error:
        print(f"scripts/chaos, seed {seed}: {error}", file=sys.stderr)
        return 1
    if output is not None:
        output.write_text(json.dumps({"conditions": conditions(), **record}, indent=1))
    for complaint in complaints[:FIRST_COMPLAINTS]:
        print(f"FAILED (seed {seed}): {complaint}", file=sys.stderr)
    if len(complaints) > FIRST_COMPLAINTS:
        print(f"… and {len(complaints) - FIRST_COMPLAINTS} more", file=sys.stderr)
    return 1 if complaints else 0


def conditions() -> dict[str, Any]:
    """At the end of the run: other work on the machine makes pauses longer."""
    return {"cores": len(os.sched_getaffinity(0)), "load_average": os.getloadavg()}


Work = tuple[dict[str, Any], list[str]]


async def guarded(work: Callable[[], Awaitable[Work]]) -> Work:
    """What kept a run from its result, as one error with every reason. Raises ServedFailedError."""
    found: list[Work] = []
    reasons: list[BaseException] = []
    try:
        found.append(await work())
    except* (ServedFailedError, BrokenAnswerError, OSError) as errors:
        reasons += leaves(errors)
    if reasons:
        raise ServedFailedError("; ".join(str(reason) or repr(reason) for reason in reasons))
    return found[0]


def leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in leaves(part)]


async def injured(recipe: Recipe, course: Course) -> Work:
    result = await run(recipe, course)
    print(f"{report.table(result)}\n\n{report.summary(result)}")
    return {"recipe": attrs.asdict(recipe), **report.as_record(result)}, result.complaints


async def soaked(recipe: Recipe, requests: int, seed: int) -> Work:
    result = await soak.soak(attrs.evolve(recipe, step_seconds=0.0), requests, seed)
    print(soak.table(result))
    return attrs.asdict(result), result.complaints


async def restarted(recipe: Recipe, times: int) -> Work:
    result = await restarts.measure(recipe, times)
    print(restarts.table(result))
    return attrs.asdict(result), result.complaints


async def ended(recipe: Recipe, times: int) -> Work:
    result = await endings.end(recipe, times)
    print(endings.table(result))
    return attrs.asdict(result), result.complaints


if __name__ == "__main__":
    sys.exit(app(result_action="return_value"))
