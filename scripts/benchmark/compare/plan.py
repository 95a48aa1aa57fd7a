"""What is asked of every server, before anything is known about time."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from scripts.benchmark.compare.results import PlanRecord

LONG_PROMPT_TOKENS = 1024
ARRIVING_PROMPT_TOKENS = 1500
STREAMS_BESIDE_PROMPTS = 8
STREAM_TOKENS = 1500
"""Of the streams beside prompts: more than there is time for."""


@attrs.frozen
class Plan:
    """The workload. `minutes` is how long all of it may take."""

    concurrency: Sequence[int]
    rounds: int
    prompt_tokens: int
    output_tokens: int
    repeats: int
    """Requests of a level for each that runs at once."""
    at_least: int
    """Requests of a level."""
    long_prompts: bool
    arrivals: int
    """Long prompts beside streams; 0: that part is left out."""
    cold_starts: bool
    minutes: float

    def requests(self, concurrency: int) -> int:
        return max(self.at_least, self.repeats * concurrency)

    @property
    def slots(self) -> int:
        """Requests that every server must be able to run at once."""
        return max(*self.concurrency, STREAMS_BESIDE_PROMPTS + self.arrivals if self.arrivals else 1)

    def record(self) -> PlanRecord:
        return PlanRecord(
            concurrency=list(self.concurrency),
            rounds=self.rounds,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            long_prompt_tokens=LONG_PROMPT_TOKENS if self.long_prompts else 0,
            arrivals=self.arrivals,
            minutes=self.minutes,
        )


FULL = Plan(
    concurrency=(1, 2, 4, 8, 16),
    rounds=3,
    prompt_tokens=128,
    output_tokens=64,
    repeats=2,
    at_least=4,
    long_prompts=True,
    arrivals=4,
    cold_starts=True,
    minutes=15.0,
)
QUICK = attrs.evolve(
    FULL,
    concurrency=(1, 4, 16),
    rounds=1,
    output_tokens=32,
    repeats=1,
    at_least=2,
    long_prompts=False,
    arrivals=0,
    cold_starts=False,
    minutes=2.0,
)
