"""Reads the house for GET /house, and keeps the reading for a moment: several browsers ask once a second. Used by
app/routes/console.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import final

import trio

from actors.handles import ActorState
from app.actor_metrics import phase_seconds
from app.engine import EngineReading
from app.house import (
    House,
    HouseActor,
    HouseEngine,
    HouseLatency,
    HouseModel,
    HouseRequests,
    HouseRunState,
)
from app.house_counts import CONDEMNED, E2E, ITL, LIVE, REPLAYED, TIMEOUTS, TTFT, HouseCounts
from app.house_links import house_links
from app.peers import CountedElsewhere
from app.services import Services

KEEP_SECONDS = 0.25
"""For which a reading is told again."""
PEER_SECONDS = 1.0
"""For which the other API servers are waited for; then, or if they cannot be asked, it tells what they said before."""


@final
class HouseReader:
    """Of one API server."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = trio.Lock()
        self._read_at = -KEEP_SECONDS
        self._reading: House | None = None
        self._others: Sequence[CountedElsewhere] = ()

    async def read(self) -> House:
        """As it is now, or was a moment ago."""
        async with self._lock:
            if self._reading is None or trio.current_time() - self._read_at >= KEEP_SECONDS:
                with trio.move_on_after(PEER_SECONDS):
                    self._others = await self._services.peers.pages() or self._others
                self._reading = the_house(self._services, self._others)
                self._read_at = trio.current_time()
            return self._reading


def the_house(services: Services, others: Sequence[CountedElsewhere]) -> House:
    """`others`: what the other API servers count."""
    engine, readiness = services.engine, services.engine.readiness
    counts = HouseCounts(services.metrics.families(others))
    states = engine.actors()
    has_servers = any(kind_of(state.name) == "api" for state in states)
    first = first_process(services, is_own=not has_servers)
    deaths = counts.deaths()
    actors = [first, *(house_actor(state, deaths, states) for state in states)]
    return House(
        version=services.version,
        now=services.clock(),
        started_at=services.started_at,
        model=house_model(services),
        alive=engine.alive,
        ready=readiness.ready and engine.alive,
        reason=readiness.reason,
        late=readiness.late,
        run_state=house_run_state(services),
        actors=actors,
        links=house_links(actors),
        engines=[house_engine(reading) for reading in engine.readings()],
        requests=HouseRequests(
            live=counts.total(LIVE),
            replayed=counts.total(REPLAYED),
            condemned=counts.total(CONDEMNED),
            timeouts=counts.total(TIMEOUTS),
        ),
        latency=HouseLatency(ttft=counts.histogram(TTFT), itl=counts.histogram(ITL), e2e=counts.histogram(E2E)),
        tool_servers=list(services.tool_servers.labels),
        max_logprobs=services.limits.max_logprobs,
    )


def house_model(services: Services) -> HouseModel:
    model, facts = services.model, services.engine.facts
    return HouseModel(
        id=model.served_names[0],
        names=list(model.served_names),
        max_model_len=0 if facts is None else facts.max_model_len,
        adapters=[adapter.name for adapter in model.adapters],
        tool_call_parser=services.dialect.tools,
        reasoning_parser=services.dialect.reasoning,
    )


def house_run_state(services: Services) -> HouseRunState:
    state = services.engine.run_state
    return HouseRunState(
        is_paused=state.is_paused, is_sleeping=state.is_sleeping, sleep_level=max(0, state.sleep_level or 0)
    )


def kind_of(name: str) -> str:
    """engine-0 is an engine, rank-0.1 a rank."""
    return name.partition("-")[0]


def first_process(services: Services, *, is_own: bool) -> HouseActor:
    """The one that owns all others: this one, or the parent of this API server. Who reads this, knows that it lives."""
    return HouseActor(
        name="app",
        kind="app",
        engine_index=None,
        epoch=0,
        pid=os.getpid() if is_own else os.getppid(),
        ready=services.engine.alive,
        phase="serve" if services.engine.alive else "end",
        phase_seconds=max(0.0, services.clock() - services.started_at),
        heartbeat_age=0.0,
        progress=1.0,
        restarts=0,
        deaths=0,
        last_end=None,
        needed=True,
    )


def house_actor(state: ActorState, deaths: Mapping[str, int], states: Sequence[ActorState]) -> HouseActor:
    return HouseActor(
        name=state.name,
        kind=kind_of(state.name),
        engine_index=engine_index(state, states),
        epoch=state.epoch,
        pid=state.pid,
        ready=state.ready,
        phase=state.phase,
        phase_seconds=round(phase_seconds(state), 3),
        heartbeat_age=round(state.heartbeat_age, 3),
        progress=state.progress,
        restarts=state.restarts,
        deaths=deaths.get(state.name, 0),
        last_end=state.last_end,
        needed=state.is_needed,
    )


def engine_index(state: ActorState, states: Sequence[ActorState]) -> int | None:
    """Also of an engine's ranks and of its connector, which are named after it."""
    if state.engine_index is not None or kind_of(state.name) not in ("rank", "kv"):
        return state.engine_index
    number = state.name.partition("-")[2].partition(".")[0]
    return next((one.engine_index for one in states if str(one.engine_index) == number), None)


def house_engine(reading: EngineReading) -> HouseEngine:
    stats, facts, held = reading.stats, reading.facts, reading.run_state
    return HouseEngine(
        index=reading.index,
        running=stats.num_requests_running,
        waiting=stats.num_requests_waiting,
        kv_blocks_used=stats.kv_blocks_used,
        kv_blocks_total=stats.kv_blocks_total,
        block_size=0 if facts is None else facts.block_size,
        kv_cache_bytes=0 if facts is None else facts.kv_cache_bytes,
        prompt_tokens=stats.prompt_tokens,
        generation_tokens=stats.generation_tokens,
        steps=stats.num_steps,
        preemptions=stats.num_preemptions,
        prefix_cache_queries=stats.prefix_cache_queries,
        prefix_cache_hits=stats.prefix_cache_hits,
        drafted=stats.spec_decode_num_draft_tokens,
        accepted=stats.spec_decode_num_accepted_tokens,
        sleep_level=held.sleep_level or 0,
        is_sleeping=held.is_sleeping,
        is_paused=held.is_paused,
    )
