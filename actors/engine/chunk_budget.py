"""How many prompt tokens a step may have beside sequences that decode, so that these do not wait long for their next
token. The scheduler asks it for each step and tells it how long steps took; it holds no clock.

A decode step costs about the same again and again, and each prompt token in it costs about the same more. Both are
learnt from the steps that ran. What they cost together is kept below a multiple of the decode step alone. But where
prompts that are soon done wait beside few sequences that decode, those are the ones to think of, and a step may take
BURST_SECONDS more: many that start at once are then decoded together instead of a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

MOST_TIMES = 1.8
"""A step with decoding sequences may take so many times what they take alone."""
BURST_SECONDS = 0.1
"""What the prompt tokens of a step may take when many prompts wait beside few sequences that decode."""
BURST_SHARE = 3
"""Prompts are many if there are as many as a third of the sequences that decode."""
SHORT_PROMPT = 256
"""Tokens of a prompt that is soon done; a longer one counts as the fraction of it that this many are."""
MIN_CHUNK = 16
"""Prompt tokens in a step whatever they cost, so that prompts go on."""
PROBE_EVERY = 16
"""Mixed steps in a row before one without prompt tokens, to see again what the decoding sequences take alone."""
RISE, FALL = 0.1, 0.5
"""How much of the difference to a decode step that took longer, or less long, is believed: one that was disturbed must
not be taken for the measure of all."""
LEAST_SECONDS = 1e-6
"""What takes less was not timed."""
TRUSTED_TOKENS = 64
"""So many prompt tokens in a step are half enough to tell what one costs."""


@final
class ChunkBudget:
    """Between MIN_CHUNK and `max_num_tokens`; that much until a first step has been timed."""

    def __init__(self, max_num_tokens: int) -> None:
        self.max_num_tokens = max_num_tokens
        self._decode_seconds: float | None = None
        self._token_seconds: float | None = None
        self._num_mixed = 0

    def next_beside(self, num_decodes: int, waiting: Iterable[int]) -> int:
        """Prompt tokens for a step that is being planned, in which so many sequences decode; `waiting` has the tokens
        that each prompt still lacks for its first answer."""
        if self._token_seconds is None:
            return self.max_num_tokens
        if self._num_mixed >= PROBE_EVERY:
            self._num_mixed = 0
            return 0
        if self._decode_seconds is None:
            return min(MIN_CHUNK, self.max_num_tokens)
        seconds = (MOST_TIMES - 1) * self._decode_seconds
        num_prompts = sum(min(1.0, SHORT_PROMPT / num_tokens) for num_tokens in waiting)
        burst = (BURST_SHARE * num_prompts / num_decodes) ** 2
        if burst > 1.0:
            seconds = max(seconds, min(seconds * burst, BURST_SECONDS))
        return min(max(int(seconds / self._token_seconds), MIN_CHUNK), self.max_num_tokens)

    def observe(self, num_decodes: int, num_prefill_tokens: int, seconds: float) -> None:
        """A step took so long. Nothing is learnt of one that took no time."""
        if seconds < LEAST_SECONDS:
            return
        if num_prefill_tokens == 0:
            self._num_mixed = 0
            self._learn_decode(seconds)
            return
        if num_decodes > 0:
            # Not known yet what decoding costs: the next step is to tell.
            self._num_mixed = PROBE_EVERY if self._decode_seconds is None else self._num_mixed + 1
        self._learn_token(num_prefill_tokens, seconds)

    def _learn_decode(self, seconds: float) -> None:
        known = self._decode_seconds
        if known is None:
            self._decode_seconds = seconds
        else:
            self._decode_seconds = known + (RISE if seconds > known else FALL) * (seconds - known)

    def _learn_token(self, num_tokens: int, seconds: float) -> None:
        """What a step costs without prompt tokens is not their cost; but at least a tenth of it is."""
        cost = max(seconds - (self._decode_seconds or 0.0), seconds / 10) / num_tokens
        known = self._token_seconds
        weight = num_tokens / (num_tokens + TRUSTED_TOKENS)
        self._token_seconds = cost if known is None else known + weight * (cost - known)

    def __repr__(self) -> str:
        return f"<ChunkBudget decode {self._decode_seconds} s, prompt token {self._token_seconds} s>"
