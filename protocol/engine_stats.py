"""What an engine's scheduler counts, as every frame of its outputs tells it (protocol/messages.py)."""

from __future__ import annotations

import msgspec

from protocol.kv import KvCounts

STEP_TOKENS_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens of a step, by which steps are counted."""


class EngineStats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A reading of the scheduler. Counters are totals since the epoch began."""

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    """Tokens of sequences that started, and those of them that were found in the prefix cache."""
    prefix_cache_hits: int = 0
    spec_decode_num_drafts: int = 0
    """Rows with guesses; the guesses in them, and those that were right."""
    spec_decode_num_draft_tokens: int = 0
    spec_decode_num_accepted_tokens: int = 0
    step_tokens: int = 0
    """Computed by steps, guesses not among them. This and what follows comes with heartbeats only; else it is empty."""
    steps_by_tokens: list[int] = []
    """Steps by the smallest of STEP_TOKENS_BOUNDS that is not below their tokens; one more, for what is above all."""
    spec_decode_accepted_by_position: list[int] = []
    """How often the first, the second, … guess of a row was right."""
    kv: KvCounts | None = None
    """What its connector counts, if it has one."""
    external_cache_queries: int = 0
    """Prompt tokens that its connector was asked for, and those that were loaded from there."""
    external_cache_hits: int = 0
