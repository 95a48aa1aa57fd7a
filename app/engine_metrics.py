"""The engines' own numbers for Prometheus, under vLLM's names: read from their latest statistics when scraped, so that
no gauge needs to be kept in step. Used by app/metrics.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from app.distribution import Distribution
from app.engine import EngineClient, EngineReading
from app.kv_metrics import kv_metrics
from app.metric_families import Families
from protocol.engine_stats import STEP_TOKENS_BOUNDS, EngineStats
from protocol.ids import Epoch
from protocol.kv import KvCounts
from protocol.spec import EngineFacts

_SLEEP_STATES = {"awake": None, "weights_offloaded": 1, "discard_all": 2}
"""vLLM's names, with their levels."""


def server_metrics(engine: EngineClient, families: Families) -> Iterable[Metric]:
    """Of the API server."""
    yield families.gauge(
        "trillm:requests_live", "Sequences of this API server that have not ended.", engine.num_requests
    )
    yield families.gauge("trillm:ready", "1 if requests are taken.", float(engine.readiness.ready))


def engine_metrics(reading: EngineReading, families: Families) -> Iterable[Metric]:
    """Of one engine."""
    yield from _gauges(reading, families)
    yield from _counters(families, reading.stats)
    yield from kv_metrics(reading.stats, families)
    text = "Prompt tokens that were expected in the prefix cache of the engine to which they were sent."
    yield families.counter("trillm:routed_prefix_tokens", text, reading.num_predicted)
    level = reading.run_state.sleep_level
    states = {name: float(level == its_level) for name, its_level in _SLEEP_STATES.items()}
    text = "1 for what the engine is; none of these at sleep level 0."
    yield families.gauges("vllm:engine_sleep_state", text, "sleep_state", states)
    if reading.facts is not None:
        yield families.info("vllm:cache_config_info", "The KV cache of each engine.", cache_facts(reading.facts))


def _gauges(reading: EngineReading, families: Families) -> Iterable[Metric]:
    gauge, stats = families.gauge, reading.stats
    yield gauge("vllm:num_requests_running", "Sequences in the running batch.", stats.num_requests_running)
    waiting = stats.num_requests_waiting
    yield gauge("vllm:num_requests_waiting", "Sequences waiting to be scheduled.", waiting)
    is_held = reading.run_state.is_held
    reasons = {"capacity": 0 if is_held else waiting, "deferred": waiting if is_held else 0}
    text = "Sequences waiting for room, or for an operator to let the engine go on."
    yield families.gauges("vllm:num_requests_waiting_by_reason", text, "reason", reasons)
    usage = min(stats.kv_blocks_used / max(stats.kv_blocks_total, 1), 1.0)
    yield gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", usage)


def _counters(families: Families, stats: EngineStats) -> Iterable[Metric]:
    counter = families.counter
    yield counter("vllm:num_preemptions", "Sequences pushed out of the batch.", stats.num_preemptions)
    yield counter("vllm:prefix_cache_queries", "Tokens looked for in the prefix cache.", stats.prefix_cache_queries)
    yield counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_cache_hits)
    yield counter("vllm:spec_decode_num_drafts", "Guesses at what follows.", stats.spec_decode_num_drafts)
    draft_tokens = stats.spec_decode_num_draft_tokens
    yield counter("vllm:spec_decode_num_draft_tokens", "Tokens in these guesses.", draft_tokens)
    accepted = stats.spec_decode_num_accepted_tokens
    yield counter("vllm:spec_decode_num_accepted_tokens", "Guessed tokens kept.", accepted)
    by_position = {str(position): number for position, number in enumerate(stats.spec_decode_accepted_by_position)}
    text = "Guessed tokens kept, by their position in the guess."
    yield families.counters("vllm:spec_decode_num_accepted_tokens_per_pos", text, "position", by_position)
    yield counter("trillm:engine_steps", "Steps of the engine's loop.", stats.num_steps)
    steps = Distribution(STEP_TOKENS_BOUNDS, stats.steps_by_tokens, stats.step_tokens)
    yield families.histogram("vllm:iteration_tokens_total", "Tokens computed in a step.", steps)


_NOTHING = EngineStats(kv=KvCounts(Epoch(0), Epoch(0)))
_OF_NOTHING = (*_counters(Families({}), _NOTHING), *kv_metrics(_NOTHING, Families({})))
COUNTED_BY_ENGINES = frozenset(family.name for family in _OF_NOTHING if family.type != "gauge")
"""Names of what every API server hears from the engines, and counts alike."""


def cache_facts(facts: EngineFacts) -> dict[str, str]:
    num_tokens = facts.num_blocks * facts.block_size
    return {
        "block_size": str(facts.block_size),
        "num_gpu_blocks": str(facts.num_blocks),
        "kv_cache_size_tokens": str(num_tokens),
        "kv_cache_memory_bytes": str(facts.kv_cache_bytes),
        "kv_cache_max_concurrency": f"{num_tokens / facts.max_model_len:.2f}",
    }
