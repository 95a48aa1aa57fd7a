"""What GET /house tells: the actors, what they say to each other, and what engines and requests count. Pure structs;
made by app/house_reader.py, read by the console (app/console) and by `trillm status`.

Times are in seconds. Counters go on over restarts of engines, and begin when the server does: readers take differences
of two readings.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class HouseModel(msgspec.Struct, frozen=True, kw_only=True):
    """What is served."""

    id: str
    """The first of its names."""
    names: list[str]
    max_model_len: int
    """Tokens of prompt and output together; 0 until an engine has told it."""
    adapters: list[str]
    """Names of LoRA adapters, which requests may ask for as models."""
    tool_call_parser: str | None
    reasoning_parser: str | None


class HouseRunState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an operator keeps engines from taking steps."""

    is_paused: bool
    is_sleeping: bool
    sleep_level: int
    """0 while awake, too."""


class HouseActor(msgspec.Struct, frozen=True, kw_only=True):
    """One process."""

    name: str
    kind: str
    """app, api, engine, rank, output, kv, weights or standby."""
    engine_index: int | None
    """Of the engine itself, its ranks and its KV connector."""
    epoch: int
    pid: int | None
    ready: bool
    phase: str
    """What it said last that it does; "down" between two incarnations."""
    phase_seconds: float
    heartbeat_age: float
    progress: float
    """Of the phase, 0 to 1; 0 where it is not known."""
    restarts: int
    deaths: int
    last_end: str | None
    """How the incarnation before this one ended."""
    needed: bool
    """False: requests are served as well while it is not ready."""


class HouseLink(msgspec.Struct, frozen=True, kw_only=True, rename={"sender": "from", "receiver": "to"}):
    """What one actor sends another."""

    sender: str
    receiver: str
    sends: str
    socket: str


class HouseEngine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's scheduler, as the API server that answers hears it: one of several that was itself started again has
    not heard what earlier incarnations of the engine counted."""

    index: int
    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    block_size: int
    """Tokens; 0 until it was ready once."""
    kv_cache_bytes: int
    prompt_tokens: int
    generation_tokens: int
    steps: int
    preemptions: int
    prefix_cache_queries: int
    """Prompt tokens that were looked for, and below those that were found."""
    prefix_cache_hits: int
    drafted: int
    """Guessed tokens, and below those that were right."""
    accepted: int
    sleep_level: int
    """0 while awake, too."""
    is_sleeping: bool
    is_paused: bool


class HouseRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Of all API servers."""

    live: int
    """Sequences that have not ended."""
    replayed: int
    """Sequences that went on elsewhere after a death."""
    condemned: int
    """Sequences that were ended as the cause of several deaths."""
    timeouts: int


class HouseHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """How often a time fell where, since the server started."""

    bounds: list[float]
    counts: list[int]
    """Of each bound those above the one before and not above it; the last is of what is above all bounds."""
    sum: float


class HouseLatency(msgspec.Struct, frozen=True, kw_only=True):
    """Of all engines, as clients had them."""

    ttft: HouseHistogram
    """From admission to a sequence's first token."""
    itl: HouseHistogram
    """Between tokens of one sequence, after the first."""
    e2e: HouseHistogram
    """From admission to a sequence's end."""


class House(msgspec.Struct, frozen=True, kw_only=True):
    """The whole house at one moment."""

    object: Literal["house"] = "house"
    version: str
    now: float
    """Unix time, as in `started_at`."""
    started_at: float
    model: HouseModel
    alive: bool
    """False once only a restart of the service helps."""
    ready: bool
    reason: str
    """Why it takes no requests."""
    late: str
    """Which engines do not serve, though others may."""
    run_state: HouseRunState
    actors: list[HouseActor]
    links: list[HouseLink]
    engines: list[HouseEngine]
    requests: HouseRequests
    latency: HouseLatency
    tool_servers: list[str]
    """Labels of the MCP servers that requests may name."""
    max_logprobs: int
