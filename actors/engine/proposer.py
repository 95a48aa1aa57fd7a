"""Who guesses the tokens that come next, for the runner to confirm several in one step.

A guess costs computing and can change no token, so that a proposer may be as simple as it likes. The one here looks up
what followed the last tokens when they occurred before, which is worth much where answers quote their prompt; or it
hands on what a draft model has guessed, which runs in the runner and whose guesses come with a step's result.
"""

from __future__ import annotations

from typing import Protocol, assert_never, final

from actors.engine.ngrams import NgramIndex
from actors.engine.sequence import Sequence
from protocol.spec import DraftModelSpec, SpeculativeSpec


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


@final
class DraftModelProposer:
    """Hands on what the runner's draft model guessed after the sequence's last token."""

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        return sequence.drafts[:count]


def make_proposer(spec: SpeculativeSpec | DraftModelSpec | None) -> Proposer | None:
    """None if nothing is to be guessed."""
    match spec:
        case None:
            return None
        case SpeculativeSpec():
            return NgramProposer(spec)
        case DraftModelSpec():
            return DraftModelProposer()
        case _:
            assert_never(spec)
