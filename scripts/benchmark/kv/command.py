"""`scripts/bench kv`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import trio
from cyclopts import Parameter

from actors.kv.lending import FetchError
from app.settings import default_cache_directory
from protocol.errors import StartError
from scripts.benchmark.conditions import conditions, refuse, the_checkpoint
from scripts.benchmark.event_stream import UnexpectedAnswerError
from scripts.benchmark.kv import copies, transports
from scripts.benchmark.kv.lending_process import installed_transports
from scripts.benchmark.kv.mixed_load import Load, measure_mixed, the_servers
from scripts.benchmark.kv.offloading import measure_offloading, offloading_table
from scripts.benchmark.kv.rates import RateRow, rate_table
from scripts.benchmark.processes import ServerFailedError
from scripts.benchmark.report import table

Part = Literal["transports", "copies", "offloading", "mixed"]
PARTS: tuple[Part, ...] = ("transports", "copies", "offloading", "mixed")


def kv(
    model: str | None = None,
    /,
    *,
    parts: Annotated[list[Part], Parameter(consume_multiple=True)] = list(PARTS),  # noqa: B006  only read
    frame_kib: Annotated[list[int], Parameter(consume_multiple=True)] = [64, 360, 1024],  # noqa: B006  only read
    mebibytes: Annotated[list[int], Parameter(consume_multiple=True)] = [1, 16, 64],  # noqa: B006  only read
    tries: int = 9,
    prompt_tokens: int = 1024,
    directory: Path | None = None,
    streams: int = 4,
    arrivals: int = 5,
    every_seconds: float = 2.5,
    output_tokens: int = 32,
    rounds: int = 2,
    output: Path | None = None,
) -> int:
    """Keys and values on their way: between connectors, between an engine and its connector, from memory and from the
    disk; and what an engine for prompts and one for the rest (prefill, decode) make of it.

    With the defaults it takes four to five minutes on two cores that have nothing else to do.

    The parts are `transports`: from one connector's frames into another's, by each transport; NIXL's if it is
    installed, over what UCX chooses (UCX_TLS). `copies`: between an engine's pool and a connector's frames.
    `offloading`: the first token of a prompt that is nowhere, in the pool, in the connector's memory, on the disk.
    `mixed`: streams, and prompts that arrive meanwhile, with `--prefill-engines 1 --decode-engines 1`, with `-dp 2` and
    with one engine, in turn.

    Parameters
    ----------
    model
        As `trillm serve` takes it.
    parts
        Which of them to measure.
    frame_kib
        Sizes of a frame, in KiB: a block of the default model has 360.
    mebibytes
        How many MiB go together.
    tries
        Of each transfer and each copy; a third of it for first tokens.
    prompt_tokens
        Of a long prompt.
    directory
        On the disk in question, for offloading; by default where trillm keeps its models.
    streams
        That decode while prompts arrive.
    arrivals
        Prompts that arrive, in each round.
    every_seconds
        Between one arrival and the next.
    output_tokens
        Of each prompt that arrives.
    rounds
        How often each kind of server has its turn.
    output
        Where the results are written as JSON.
    """
    if min(frame_kib + mebibytes + [tries, prompt_tokens, streams, arrivals, output_tokens, rounds]) < 1:
        return refuse("sizes and numbers must be positive")
    sizes = [size << 20 for size in mebibytes]
    record: dict[str, Any] = {"conditions": conditions()}
    print(f"{record['conditions']['at']}, load average {os.getloadavg()[0]:.2f}, GB/s are the best (median) of {tries}")
    try:
        if "transports" in parts:
            rows = trio.run(_transports, [size << 10 for size in frame_kib], sizes, tries)
            _show_rates("from connector to connector", rows, transports.ratios(installed_transports()), record)
        if "copies" in parts:
            rows = copies.measure_copies(the_checkpoint(model).directory, sizes, tries)
            _show_rates("between pool and connector", rows, copies.RATIOS, record)
        if "offloading" in parts:
            _offloading(model, directory or default_cache_directory(), prompt_tokens, max(1, tries // 3), record)
        if "mixed" in parts:
            load = Load(streams, arrivals, every_seconds, prompt_tokens, output_tokens)
            _mixed(model, load, rounds, record)
    except (ServerFailedError, UnexpectedAnswerError, FetchError, StartError, OSError) as error:
        return refuse(str(error))
    if output is not None:
        output.write_text(json.dumps(record, indent=1))
    return 0


async def _transports(frame_bytes: list[int], sizes: list[int], tries: int) -> list[RateRow]:
    return [row async for row in transports.measure_transports(frame_bytes, sizes, installed_transports(), tries)]


def _show_rates(title: str, rows: list[RateRow], ratios: list[tuple[str, str]], record: dict[str, Any]) -> None:
    print(f"\n{rate_table(f'{title}, GB/s', rows, ratios)}", flush=True)
    record[title] = [attrs.asdict(row) for row in rows]


def _offloading(model: str | None, directory: Path, prompt_tokens: int, tries: int, record: dict[str, Any]) -> None:
    checkpoint = the_checkpoint(model)
    directory.mkdir(parents=True, exist_ok=True)
    found = measure_offloading(model, checkpoint.name, checkpoint.directory, directory, prompt_tokens, tries)
    print(f"\n{offloading_table(found, prompt_tokens)}", flush=True)
    record["offloading"] = [attrs.asdict(row) for row in found]


def _mixed(model: str | None, load: Load, rounds: int, record: dict[str, Any]) -> None:
    checkpoint, began = the_checkpoint(model), time.perf_counter()

    def report(done: str) -> None:
        print(f"{done}, {time.perf_counter() - began:.0f} s", file=sys.stderr)

    found = measure_mixed(the_servers(model, checkpoint.name), checkpoint.directory, load, rounds, report)
    print(
        f"\n{load.streams} streams, and {load.arrivals} prompts of {load.prompt_tokens} tokens, one each "
        f"{load.every_seconds:g} s, with {load.output_tokens} tokens out:\n{table(load.figures(), found)}\n"
        f"{rounds} rounds; median (lowest–highest). Ratios above 1: prefill + decode is better."
    )
    record["mixed"] = {"load": attrs.asdict(load), "rounds": found}
