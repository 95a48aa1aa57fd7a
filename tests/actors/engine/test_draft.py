"""A step's budget is spent once."""

from __future__ import annotations

from actors.engine.draft import StepDraft
from actors.engine.sequence import Sequence
from tests.helpers.scheduling import a_request


def test_what_a_preempted_sequence_had_is_there_for_others():
    draft = StepDraft(1, 10)
    first, second = Sequence(a_request("a"), 1, 64), Sequence(a_request("b"), 2, 64)
    draft.take(first, 4)
    draft.take(second, 5)
    assert draft.tokens_left == 1
    draft.give_up(first)
    assert draft.tokens_left == 5
    assert list(draft.counts) == [second]


def test_giving_up_nothing_changes_nothing():
    draft = StepDraft(1, 10)
    draft.give_up(Sequence(a_request("a"), 1, 64))
    assert draft.tokens_left == 10
