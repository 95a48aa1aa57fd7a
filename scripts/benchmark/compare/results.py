"""All raw numbers of one comparison, as results.json holds them. Tables and plots are made of nothing else.

Seconds, bytes and tokens throughout. No path and no name of a machine is kept.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


class Level(msgspec.Struct, frozen=True):
    """So many requests at once, each followed by the next, for a fixed number of requests."""

    concurrency: int
    requests: int
    failures: int
    failure: str
    """What the first request that failed was told; empty if none did."""
    seconds: float
    output_tokens: int
    """Of the requests that did not fail, by the server's count."""
    ttft: list[float]
    """From sending a request to its first text, one for each request that did not fail."""
    e2e: list[float]
    """… to its end."""
    texts: int
    """In which the output came. One may carry several tokens."""
    itl_p50: float
    """Between one text and the next, over all requests."""
    itl_p95: float
    itl_p99: float
    itl_max: float
    cpu_seconds: float
    """Of all processes of the server."""
    client_share: float
    """Of one core, that the client took."""
    others_share: float
    """Of all cores, that neither server nor client took."""


class BesidePrompts(msgspec.Struct, frozen=True):
    """Streams, and long prompts that arrive meanwhile, one each second."""

    streams: int
    arrivals: int
    prompt_tokens: int
    itl_p50: float
    """Of the streams."""
    itl_p99: float
    ttft: list[float]
    """Of the prompts; what has none at the end counts with as long as it has waited."""


class Turn(msgspec.Struct, frozen=True):
    """One server, started, measured and stopped."""

    round: int
    """From 1."""
    seconds: float
    ready_seconds: float
    """From starting the process to the first 200 of its health route, with everything in the page cache."""
    first_request_seconds: float
    """The first request after the start, to its end."""
    memory_idle: int
    """PSS of the whole process tree, once it is ready."""
    memory_load: int
    """The most that was seen half-way through a level."""
    ttft_long: float | None
    """First token of a long prompt; None if there was no time for it."""
    ttft_again: float | None
    """… and of the same prompt a second time."""
    levels: list[Level]
    beside: BesidePrompts | None = None
    left_out: list[str] = []
    """What there are no figures of, and why."""


class ServerResults(msgspec.Struct):
    """Everything of one server with one model."""

    name: str
    version: str
    weights: str
    """In which form it was given the model."""
    command: list[str]
    environment: dict[str, str] = {}
    """What was set for it."""
    turns: list[Turn] = []
    cold_start_seconds: float | None = None
    """To ready, with its files not in the page cache, as after a start of the machine."""
    first_start_seconds: float | None = None
    """… with its files there, and without what earlier starts cached; None if it caches nothing."""
    trouble: str = ""
    """Why it has no figures, or not all."""


class ModelResults(msgspec.Struct):
    """One model on all servers."""

    name: str
    servers: list[ServerResults]
    """The first is what the others are held against."""


class Machine(msgspec.Struct, frozen=True):
    """What it ran on."""

    processor: str
    features: list[str]
    """Instructions that the kernels of such servers use."""
    cores: int
    memory_bytes: int
    system: str


class Conditions(msgspec.Struct):
    """What the machine was doing."""

    began: str
    ended: str
    load_before: float
    """The load average of the last minute."""
    load_after: float
    megahertz_low: float
    megahertz_high: float
    """As the system told at the beginning and at the end; 0 where it does not."""
    governor: str
    stolen_share: float
    """Of all cores, that the hypervisor gave to others meanwhile."""


class PlanRecord(msgspec.Struct, frozen=True):
    """What was to be done."""

    concurrency: list[int]
    rounds: int
    prompt_tokens: int
    output_tokens: int
    long_prompt_tokens: int
    arrivals: int
    minutes: float


class Results(msgspec.Struct):
    """A whole results.json."""

    command_line: list[str]
    machine: Machine
    conditions: Conditions
    plan: PlanRecord
    models: list[ModelResults]
    missing: dict[str, str] = {}
    """Peers that were asked for and are not here, and where they were looked for."""


def write_results(results: Results, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(rounded(results)), indent=1) + b"\n")


def read_results(path: Path) -> Results:
    """Raises OSError and msgspec.DecodeError."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def as_written(results: Results) -> Results:
    """With the digits that are kept: what is told of it is then the same whenever it is told."""
    return msgspec.convert(rounded(results), Results)


def rounded(results: Results) -> object:
    """Six digits are more than a clock gives here."""
    return _rounded(msgspec.to_builtins(results))


def _rounded(value: object) -> object:
    match value:
        case float():
            return float(f"{value:.6g}")
        case list():
            return [_rounded(one) for one in value]
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case _:
            return value
