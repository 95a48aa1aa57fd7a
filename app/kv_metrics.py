"""What KV connectors count, for Prometheus, under vLLM's names where it has the thing. Used by app/engine_metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric

from app.metric_families import Families
from protocol.engine_stats import EngineStats
from protocol.kv import KV_FAILURES, KV_TIERS, KvCounts

TRANSPORTS = ("shm", "tcp")
"""That there are everywhere. NIXL's are called by what it goes over, which is known once it has."""


def kv_metrics(stats: EngineStats, families: Families) -> Iterable[Metric]:
    """Of one engine that has a connector, or has had one."""
    if stats.kv is None:
        return
    text = "Prompt tokens for which the KV connector was asked."
    yield families.counter("vllm:external_prefix_cache_queries", text, stats.external_cache_queries)
    text = "Prompt tokens that were loaded from the KV connector."
    yield families.counter("vllm:external_prefix_cache_hits", text, stats.external_cache_hits)
    yield from _gauges(stats.kv, families)
    yield from _counters(stats.kv, families)


def _gauges(counts: KvCounts, families: Families) -> Iterable[Metric]:
    text = "Frames of the KV connector's memory, each of one block, by what they are."
    yield families.gauges("trillm:kv_frames", text, "state", {state: float(n) for state, n in counts.frames.items()})
    yield families.gauge("trillm:kv_disk_blocks", "KV blocks on the disk.", counts.disk_blocks)
    yield families.gauge("trillm:kv_disk_bytes", "What they take there.", counts.disk_bytes)
    yield families.gauge("trillm:kv_leases", "Exports that are held for others.", counts.leases)


def _counters(counts: KvCounts, families: Families) -> Iterable[Metric]:
    counters = families.counters
    text = "KV blocks that were looked for, by where."
    yield counters("trillm:kv_queried_blocks", text, "tier", _at_least(KV_TIERS, counts.queried_blocks))
    text = "KV blocks that were found, by where."
    yield counters("trillm:kv_found_blocks", text, "tier", _at_least(KV_TIERS, counts.found_blocks))
    yield families.counter("trillm:kv_saved_blocks", "KV blocks that the engine has saved.", counts.saved_blocks)
    text = "Transfers from other connectors to this one."
    yield counters("trillm:kv_transfers", text, "transport", _at_least(TRANSPORTS, counts.transfers))
    yield counters(
        "trillm:kv_transfer_bytes", "What they brought.", "transport", _at_least(TRANSPORTS, counts.transfer_bytes)
    )
    yield counters(
        "trillm:kv_transfer_seconds", "What they took.", "transport", _at_least(TRANSPORTS, counts.transfer_seconds)
    )
    text = "What the KV connector could not do; the engine computed it instead, or its request failed."
    yield counters("trillm:kv_failures", text, "kind", _at_least(KV_FAILURES, counts.failures))
    yield families.counter("trillm:kv_leases_granted", "Exports.", counts.leases_granted)
    yield families.counter(
        "trillm:kv_leases_expired", "Exports that nobody has fetched in time.", counts.leases_expired
    )


def _at_least(labels: Iterable[str], counted: Mapping[str, float]) -> dict[str, float]:
    """Also what has not happened yet, so that alerts can be made of it."""
    return dict.fromkeys(labels, 0.0) | dict(counted)
