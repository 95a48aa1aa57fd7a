"""What connectors count, as Prometheus reads it: it never goes down, whichever of connector and engine dies."""

from __future__ import annotations

import math

import msgspec
import pytest

from app.engine import EngineReading
from app.engine_metrics import COUNTED_BY_ENGINES, engine_metrics
from app.engine_totals import EngineTotals
from app.kv_totals import KvTotals
from app.metric_families import Families
from app.metrics_page import read_page, together_with, written
from protocol.engine_stats import STEP_TOKENS_BOUNDS, EngineStats
from protocol.ids import EngineIndex, Epoch
from protocol.kv import KV_FAILURES, KvCounts
from protocol.operations import RunState

ENGINE, OTHER = EngineIndex(0), EngineIndex(1)
BUCKETS = [0] * (len(STEP_TOKENS_BOUNDS) + 1)
"""With heartbeats only, and so is what a connector counts."""


def counts(kv_epoch: int = 7, scale: int = 1) -> KvCounts:
    """Of a connector that has done everything so many times."""
    return KvCounts(
        epoch=Epoch(1),
        kv_epoch=Epoch(kv_epoch),
        frames={"free": 3, "held": 5},
        disk_blocks=11,
        disk_bytes=1100,
        leases=2,
        queried_blocks={"memory": 10 * scale, "peer": scale},
        found_blocks={"memory": 4 * scale},
        saved_blocks=6 * scale,
        transfers={"tcp": 2 * scale},
        transfer_bytes={"tcp": 640 * scale},
        transfer_seconds={"tcp": 0.5 * scale},
        failures={"expired": scale},
        leases_granted=9 * scale,
        leases_expired=scale,
    )


def heartbeat(kv: KvCounts | None, **fields: int) -> EngineStats:
    return EngineStats(steps_by_tokens=BUCKETS, kv=kv, **fields)


def families_of(stats: EngineStats) -> list:
    reading = EngineReading(ENGINE, stats, RunState(), None, 0)
    return list(engine_metrics(reading, Families({"engine": "0"})))


def samples_of(stats: EngineStats) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for family in families_of(stats):
        for sample in family.samples:
            labels = [value for label, value in sample.labels.items() if label != "engine"]
            found[(sample.name, *labels)] = sample.value
    return found


def counters_of(stats: EngineStats) -> dict[tuple[str, ...], float]:
    return {name: value for name, value in samples_of(stats).items() if name[0].endswith("_total")}


def gauges_of(kv: KvCounts | None) -> tuple:
    assert kv is not None
    return kv.frames, kv.disk_blocks, kv.disk_bytes, kv.leases


# ------------------------------------------------------------------ totals


def test_without_a_connector_there_is_no_reading() -> None:
    totals = KvTotals()
    totals.take(None)
    assert totals.reading() is None


def test_the_next_connector_counts_on_and_has_gauges_of_its_own() -> None:
    totals = KvTotals()
    totals.take(counts(7, 3))
    totals.take(msgspec.structs.replace(counts(8, 1), disk_blocks=1))
    total = totals.reading()
    assert total is not None
    assert (total.kv_epoch, total.disk_blocks) == (8, 1)
    assert msgspec.structs.replace(total, disk_blocks=11) == counts(8, 4)
    totals.take(counts(9, 2))
    assert totals.reading() == counts(9, 6)


def test_a_connector_that_has_not_done_what_the_one_before_did_takes_nothing_away() -> None:
    totals = KvTotals()
    totals.take(counts(7))
    totals.take(KvCounts(Epoch(1), Epoch(8), failures={"disk": 2}))
    total = totals.reading()
    assert total is not None
    assert total.failures == {"expired": 1, "disk": 2}
    assert total.transfer_seconds == {"tcp": 0.5}
    assert total.saved_blocks == 6


def test_one_that_is_gone_keeps_its_counters_and_loses_its_gauges() -> None:
    totals = KvTotals()
    totals.take(counts())
    totals.take(None)
    total = totals.reading()
    assert gauges_of(total) == ({}, 0, 0, 0)
    assert total == msgspec.structs.replace(counts(), frames={}, disk_blocks=0, disk_bytes=0, leases=0)
    totals.take(counts())
    assert totals.reading() == counts()  # it was only not heard


# ------------------------------------------------------------------ over an engine's deaths


@pytest.fixture
def totals() -> EngineTotals:
    made = EngineTotals()
    made.attach(ENGINE, Epoch(1), 100)
    return made


def test_counters_never_go_down_over_deaths_of_engine_and_connector(totals: EngineTotals) -> None:
    attached = [ENGINE]
    before: dict[tuple[str, ...], float] = {}

    def look() -> dict[tuple[str, ...], float]:
        now = counters_of(totals.readings(attached)[ENGINE])
        assert all(now[name] >= value for name, value in before.items())
        before.update(now)
        return now

    saved = ("trillm:kv_saved_blocks_total",)
    hits = ("vllm:external_prefix_cache_hits_total",)
    look()
    totals.take(ENGINE, heartbeat(counts(7, 2), external_cache_hits=32))
    totals.take(ENGINE, EngineStats(external_cache_hits=48))  # with outputs
    assert (look()[saved], before[hits]) == (12, 48)

    totals.take(ENGINE, heartbeat(None, external_cache_hits=48))  # its connector is gone
    assert look()[saved] == 12
    totals.take(ENGINE, heartbeat(counts(8), external_cache_hits=48))
    assert look()[saved] == 18

    attached.clear()  # the engine is gone
    assert look()[saved] == 18
    attached.append(ENGINE)
    totals.attach(ENGINE, Epoch(2), 100)
    assert (look()[saved], before[hits]) == (18, 48)
    totals.take(ENGINE, heartbeat(counts(8, 2), external_cache_hits=16))  # the connector lived on
    assert (look()[saved], before[hits]) == (24, 64)

    totals.attach(ENGINE, Epoch(3), 100)  # both died at once
    look()
    totals.take(ENGINE, heartbeat(counts(9)))
    assert look()[saved] == 30


def test_gauges_are_of_a_connector_that_is_there_and_heard(totals: EngineTotals) -> None:
    totals.take(ENGINE, heartbeat(counts()))
    totals.take(ENGINE, EngineStats())
    assert gauges_of(totals.readings([ENGINE])[ENGINE].kv) == ({"free": 3, "held": 5}, 11, 1100, 2)
    assert gauges_of(totals.readings([])[ENGINE].kv) == ({}, 0, 0, 0)
    assert gauges_of(totals.readings([ENGINE])[ENGINE].kv) == ({"free": 3, "held": 5}, 11, 1100, 2)
    totals.take(ENGINE, heartbeat(None))
    assert gauges_of(totals.readings([ENGINE])[ENGINE].kv) == ({}, 0, 0, 0)


def test_each_engine_has_what_its_own_connector_counts(totals: EngineTotals) -> None:
    totals.attach(OTHER, Epoch(2), 100)
    totals.take(ENGINE, heartbeat(counts(7, 1)))
    totals.take(OTHER, heartbeat(counts(8, 5)))
    readings = totals.readings([ENGINE, OTHER])
    assert (readings[ENGINE].kv, readings[OTHER].kv) == (counts(7, 1), counts(8, 5))
    assert totals.reading([ENGINE, OTHER]).kv is None  # nothing is told of all together


# ------------------------------------------------------------------ the page


def test_everything_that_is_counted_is_told() -> None:
    found = samples_of(heartbeat(counts(), external_cache_queries=64, external_cache_hits=32))
    told = {name: value for name, value in found.items() if "kv_" in name[0] and name[0].startswith("trillm")}
    assert {name: value for name, value in told.items() if value} == {
        ("trillm:kv_frames", "free"): 3,
        ("trillm:kv_frames", "held"): 5,
        ("trillm:kv_disk_blocks",): 11,
        ("trillm:kv_disk_bytes",): 1100,
        ("trillm:kv_leases",): 2,
        ("trillm:kv_queried_blocks_total", "memory"): 10,
        ("trillm:kv_queried_blocks_total", "peer"): 1,
        ("trillm:kv_found_blocks_total", "memory"): 4,
        ("trillm:kv_saved_blocks_total",): 6,
        ("trillm:kv_transfers_total", "tcp"): 2,
        ("trillm:kv_transfer_bytes_total", "tcp"): 640,
        ("trillm:kv_transfer_seconds_total", "tcp"): 0.5,
        ("trillm:kv_failures_total", "expired"): 1,
        ("trillm:kv_leases_granted_total",): 9,
        ("trillm:kv_leases_expired_total",): 1,
    }
    assert found["vllm:external_prefix_cache_queries_total",] == 64
    assert found["vllm:external_prefix_cache_hits_total",] == 32


def test_what_has_not_happened_yet_is_told_as_nothing() -> None:
    found = samples_of(heartbeat(KvCounts(Epoch(1), Epoch(7), failures={"disk": 2})))
    for name in ("transfers", "transfer_bytes", "transfer_seconds"):
        for transport in ("shm", "tcp"):
            assert found[f"trillm:kv_{name}_total", transport] == 0
    for kind in KV_FAILURES:
        assert found["trillm:kv_failures_total", kind] == (2 if kind == "disk" else 0)
    assert found["trillm:kv_found_blocks_total", "peer"] == 0


def test_engines_without_connectors_have_no_such_series() -> None:
    assert not any("kv_frames" in name or "external" in name for name, *_ in samples_of(heartbeat(None)))


def test_what_several_api_servers_hear_of_one_connector_is_counted_once() -> None:
    own = families_of(heartbeat(counts(7, 1), external_cache_hits=16))
    theirs = read_page(written(families_of(heartbeat(counts(7, 2), external_cache_hits=32)), 0))
    page = {family.name: family for family in together_with(own, [(theirs, True)])}
    assert [sample.value for sample in page["trillm:kv_saved_blocks"].samples] == [12]
    assert [sample.value for sample in page["vllm:external_prefix_cache_hits"].samples] == [32]
    counted = {family.name for family in own if family.type == "counter" and "routed" not in family.name}
    assert counted <= COUNTED_BY_ENGINES


def test_times_are_added_up_as_they_are() -> None:
    totals = KvTotals()
    for kv_epoch in range(1, 11):
        totals.take(KvCounts(Epoch(1), Epoch(kv_epoch), transfer_seconds={"tcp": 0.1}))
    total = totals.reading()
    assert total is not None
    assert math.isclose(total.transfer_seconds["tcp"], 1.0)
