"""Who guesses the tokens that come next, for the runner to confirm several in one step.

A guess costs computing and can change no token, so that a proposer may be as simple as it likes. The one here looks up
what followed the last tokens when they occurred before, which is worth much where answers quote their prompt. A draft
model would be another: it would have to run in the runner, and its guesses to come back with a step's result.
"""

from __future__ import annotations

from typing import Protocol, final

from actors.engine.ngrams import NgramIndex
from actors.engine.sequence import Sequence
from protocol.spec import SpeculativeSpec


class Proposer(Protocol):
    """Asked by the scheduler for each sequence that goes on by one token."""

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        """At most `count` guesses at what comes after the sequence's tokens."""


@final
class NgramProposer:
    """Continues the longest of the last n-grams that has been there before, as it went on then."""

    def __init__(self, spec: SpeculativeSpec) -> None:
        self._num_tokens = spec.num_speculative_tokens
        self._sizes = range(spec.prompt_lookup_min, spec.prompt_lookup_max + 1)

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        if sequence.ngrams is None:
            sequence.ngrams = NgramIndex(self._sizes)
        token_ids = sequence.token_ids
        begin = sequence.ngrams.find_earlier(token_ids)
        return [] if begin is None else token_ids[begin : begin + min(count, self._num_tokens)]


def make_proposer(spec: SpeculativeSpec | None) -> Proposer | None:
    """None if nothing is to be guessed."""
    return None if spec is None else NgramProposer(spec)
