"""Prompts that arrive while streams decode, and what both notice of each other: with an engine for each (prefill here,
decode there), with two engines for all, and with one.

The engines share the machine's cores, as they do on a CPU.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from scripts.benchmark import servers
from scripts.benchmark.client import Call, Client
from scripts.benchmark.event_stream import UnexpectedAnswerError
from scripts.benchmark.figure import Figure
from scripts.benchmark.processes import RunningServer, Server, open_server
from scripts.benchmark.prompts import Prompts
from scripts.benchmark.statistics import percentile

STREAM_PROMPT_TOKENS = 128
STREAM_TOKENS = 4000
"""More than there is time for."""
ALONE = 2
"""Prompts that are answered before the load begins."""
CALL_SECONDS = 60.0
LAST_SECONDS = 30.0
"""After the last arrival. What has no first token by then counts with as long as it has waited."""
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@attrs.frozen
class Load:
    """What is asked of each server of a round."""

    streams: int
    arrivals: int
    every_seconds: float
    prompt_tokens: int
    output_tokens: int
    """Of each prompt that arrives."""

    def figures(self) -> dict[str, Figure]:
        """In the order of the table."""
        rows = {"alone": "a prompt alone, first token", "alone_second": "… and from the first to the second"}
        rows |= {f"ttft_{at}": f"first token of prompts beside streams, {at}" for at in SHARES}
        rows |= {"second": "… and from the first to the second, p50"}
        rows |= {f"own_{at}": f"… and between tokens after that, {at}" for at in SHARES}
        rows |= {f"gap_{at}": f"between tokens of the streams, {at}" for at in SHARES}
        rates = {"output": "output of the streams meanwhile"}
        return {key: Figure(title, "ms", False) for key, title in rows.items()} | {
            key: Figure(title, "tok/s", True) for key, title in rates.items()
        }


def the_servers(model: str | None, name: str) -> list[Server]:
    """The first is what the others are held against."""
    ways = {
        "1 prefill + 1 decode": ["--prefill-engines", "1", "--decode-engines", "1"],
        "-dp 2": ["-dp", "2"],
        "one engine": [],
    }
    return [attrs.evolve(servers.trillm(model, name, arguments), name=way) for way, arguments in ways.items()]


def measure_mixed(
    under_test: Sequence[Server], checkpoint: Path, load: Load, rounds: int, report: Callable[[str], None]
) -> dict[str, list[dict[str, float]]]:
    """Of each server the figures of each round; all have the same prompts in a round. Raises ServerFailedError and
    UnexpectedAnswerError."""
    found: dict[str, list[dict[str, float]]] = {server.name: [] for server in under_test}
    for number in range(rounds):
        for server in _in_turn(under_test, number):
            prompts = Prompts(checkpoint, seed=number)
            with tempfile.TemporaryDirectory() as directory, open_server(server, Path(directory) / "log") as running:
                found[server.name].append(_under_load(running, prompts, load))
            report(f"round {number + 1}, {server.name}: done")
    return found


def _in_turn(under_test: Sequence[Server], number: int) -> Iterator[Server]:
    """Another one is the first in each round."""
    first = number % len(under_test)
    return iter([*under_test[first:], *under_test[:first]])


def _under_load(running: RunningServer, prompts: Prompts, load: Load) -> dict[str, float]:
    def call(num_prompt_tokens: int, max_tokens: int) -> Call:
        return Call(running.address, running.server.model, prompts.make(num_prompt_tokens), max_tokens)

    client = Client()
    try:
        alone = []
        for _ in range(1 + ALONE):
            alone.append(call(load.prompt_tokens, 8))
            client.start(alone[-1])
            client.finish(CALL_SECONDS)
        streams = [call(STREAM_PROMPT_TOKENS, STREAM_TOKENS) for _ in range(load.streams)]
        for stream in streams:
            client.start(stream)
        if not client.run(lambda: all(len(stream.events) > 2 for stream in streams), CALL_SECONDS):
            raise UnexpectedAnswerError("the streams did not begin")
        began = max(stream.events[-1][0] for stream in streams)
        arriving = []
        for _ in range(load.arrivals):
            arriving.append(call(load.prompt_tokens, load.output_tokens))
            client.start(arriving[-1])
            client.run(lambda: False, load.every_seconds)
        client.run(lambda: all(one.ended_at for one in arriving), LAST_SECONDS)
        ended = time.perf_counter()
    finally:
        client.close()
    # What a server does for the first time is not what is measured.
    return figures_alone(alone[1:]) | figures_beside(streams, arriving, began, ended)


def figures_alone(calls: Sequence[Call]) -> dict[str, float]:
    """In milliseconds."""
    return {
        "alone": 1e3 * percentile([one.first_token_seconds for one in calls], 0.5),
        "alone_second": 1e3 * percentile([one.gaps()[0] for one in calls], 0.5),
    }


def figures_beside(streams: Sequence[Call], arriving: Sequence[Call], began: float, ended: float) -> dict[str, float]:
    """In milliseconds, and the tokens of all streams per second, between two moments."""
    gaps = [gap for stream in streams for gap in stream.gaps(since=began)]
    # A stream that has come to a standstill counts too.
    gaps += [ended - stream.text_times[-1] for stream in streams if stream.ended_at is None]
    firsts = [one.first_token_seconds if one.text_times else ended - one.sent_at for one in arriving]
    between = [of_one for one in arriving if (of_one := one.gaps())]
    of_kinds = {"ttft": firsts, "own": [gap for of_one in between for gap in of_one[1:]], "gap": gaps}
    found = {
        f"{kind}_{at}": 1e3 * percentile(values, share)
        for kind, values in of_kinds.items()
        if values
        for at, share in SHARES.items()
    }
    if between:
        found["second"] = 1e3 * percentile([of_one[0] for of_one in between], 0.5)
    num_texts = sum(sum(began <= at <= ended for at in stream.text_times) for stream in streams)
    return found | {"output": num_texts / (ended - began)}
