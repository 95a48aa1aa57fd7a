"""What a server's /house tells, for tests of what commands make of it."""

from __future__ import annotations

import msgspec

from app.house import (
    House,
    HouseActor,
    HouseEngine,
    HouseHistogram,
    HouseLatency,
    HouseModel,
    HouseRequests,
    HouseRunState,
)

NOTHING = HouseHistogram(bounds=[], counts=[0], sum=0.0)


def actor(name: str, **changes: object) -> HouseActor:
    usual = HouseActor(
        name=name,
        kind=name.partition("-")[0],
        engine_index=None,
        epoch=1,
        pid=4711,
        ready=True,
        phase="serve",
        phase_seconds=9.0,
        heartbeat_age=0.5,
        progress=1.0,
        restarts=0,
        deaths=0,
        last_end=None,
        needed=True,
    )
    return msgspec.structs.replace(usual, **changes)


def engine(index: int = 0, **changes: object) -> HouseEngine:
    usual = HouseEngine(
        index=index,
        running=3,
        waiting=1,
        kv_blocks_used=25,
        kv_blocks_total=100,
        block_size=16,
        kv_cache_bytes=1,
        prompt_tokens=12_345,
        generation_tokens=950,
        steps=1,
        preemptions=0,
        prefix_cache_queries=200,
        prefix_cache_hits=50,
        drafted=0,
        accepted=0,
        sleep_level=0,
        is_sleeping=False,
        is_paused=False,
    )
    return msgspec.structs.replace(usual, **changes)


def house(**changes: object) -> House:
    model = HouseModel(
        id="owner/dummy",
        names=["owner/dummy"],
        max_model_len=2048,
        adapters=[],
        tool_call_parser=None,
        reasoning_parser=None,
    )
    usual = House(
        version="1.2.3",
        now=8000.0,
        started_at=12.0,
        model=model,
        alive=True,
        ready=True,
        reason="",
        late="",
        run_state=HouseRunState(is_paused=False, is_sleeping=False, sleep_level=0),
        actors=[actor("app"), actor("engine-0", pid=4712)],
        links=[],
        engines=[engine()],
        requests=HouseRequests(live=4, replayed=0, condemned=0, timeouts=0),
        latency=HouseLatency(ttft=NOTHING, itl=NOTHING, e2e=NOTHING),
        tool_servers=[],
        max_logprobs=20,
    )
    return msgspec.structs.replace(usual, **changes)
