"""How many prompt tokens a step may have beside sequences that decode, so that these do not wait long for their next
token. The scheduler asks it for each step and tells it how long steps took; it holds no clock.

A decode step costs a constant and something for each sequence, and each prompt token in it costs about the same more.
All three are learnt from the steps that ran. What they cost together is kept below a multiple of the decode step alone.
But where prompts that are soon done wait beside few sequences that decode, those are the ones to think of, and a step
may take BURST_SECONDS more: many that start at once are then decoded together instead of a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

MOST_TIMES = 1.6
"""A step with decoding sequences may take so many times what they take alone."""
BURST_SECONDS = 0.1
"""What the prompt tokens of a step may take when many prompts wait beside few sequences that decode."""
BURST_SHARE = 3
"""Prompts are many if there are as many as a third of the sequences that decode."""
SHORT_PROMPT = 256
"""Tokens of a prompt that is soon done; a longer one counts as the fraction of it that this many are."""
MIN_CHUNK = 8
"""Prompt tokens in a step whatever they cost, so that prompts go on."""
PROBE_EVERY = 16
"""Mixed steps in a row before one without prompt tokens, to see again what the decoding sequences take alone."""
PROBE_GROWTH = 1.25
"""… or as soon as so many times more sequences decode than in the last such step."""
BELIEF = 0.5
"""How much of the difference to a decode step that took another time than expected is believed."""
MOST_SURPRISE = 1.4
"""Of one that took much longer only this part of what was expected: it was disturbed, and must not be the measure."""
TOGETHER = 8
"""Sequences in a step whose share in its costs is learnt as fast as the constant's."""
LEAST_SECONDS = 1e-6
"""What takes less was not timed."""
TRUSTED_TOKENS = 64
"""So many prompt tokens in a step are half enough to tell what one costs."""


@final
class ChunkBudget:
    """Between MIN_CHUNK and `max_num_tokens`; that much until a first step has been timed."""

    def __init__(self, max_num_tokens: int) -> None:
        self.max_num_tokens = max_num_tokens
        self._decode_costs: tuple[float, float] | None = None
        """Seconds of a decode step: a constant, and for TOGETHER sequences."""
        self._probed_decodes = 0
        self._token_seconds: float | None = None
        self._num_mixed = 0

    def next_beside(self, num_decodes: int, waiting: Iterable[int]) -> int:
        """Prompt tokens for a step that is being planned, in which so many sequences decode; `waiting` has the tokens
        that each prompt still lacks for its first answer."""
        if self._token_seconds is None:
            return self.max_num_tokens
        if self._num_mixed >= PROBE_EVERY or (self._num_mixed and num_decodes > PROBE_GROWTH * self._probed_decodes):
            self._num_mixed = 0
            return 0
        if self._decode_costs is None:
            return min(MIN_CHUNK, self.max_num_tokens)
        seconds = (MOST_TIMES - 1) * self._decode_seconds(num_decodes)
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
            self._learn_decode(num_decodes, seconds)
            return
        if num_decodes > 0:
            # Not known yet what decoding costs: the next step is to tell.
            self._num_mixed = PROBE_EVERY if self._decode_costs is None else self._num_mixed + 1
        self._learn_token(num_decodes, num_prefill_tokens, seconds)

    def _decode_seconds(self, num_decodes: int) -> float:
        constant, each = self._decode_costs or (0.0, 0.0)
        return constant + each * num_decodes / TOGETHER

    def _learn_decode(self, num_decodes: int, seconds: float) -> None:
        """A normalised least-mean-squares step: the error is shared out in proportion to what each cost's factor was,
        so that the next step with as many sequences is right, however many there will be later."""
        self._probed_decodes = num_decodes
        factor = num_decodes / TOGETHER
        if self._decode_costs is None:
            self._decode_costs = (seconds, 0.0)
            return
        constant, each = self._decode_costs
        expected = self._decode_seconds(num_decodes)
        error = BELIEF * (min(seconds, MOST_SURPRISE * expected) - expected) / (1 + factor * factor)
        each = max(0.0, each + error * factor)
        self._decode_costs = (max(LEAST_SECONDS, constant + error), each)

    def _learn_token(self, num_decodes: int, num_tokens: int, seconds: float) -> None:
        """What a step costs without prompt tokens is not their cost; but at least a tenth of it is."""
        cost = max(seconds - self._decode_seconds(num_decodes), seconds / 10) / num_tokens
        known = self._token_seconds
        weight = num_tokens / (num_tokens + TRUSTED_TOKENS)
        self._token_seconds = cost if known is None else known + weight * (cost - known)

    def __repr__(self) -> str:
        return f"<ChunkBudget decode {self._decode_costs} s, prompt token {self._token_seconds} s>"
