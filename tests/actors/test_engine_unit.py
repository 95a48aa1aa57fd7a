"""Which of an engine's ranks is to blame, and how all of them look from outside."""

from __future__ import annotations

import pytest
import trio

from actors.engine_unit import EngineUnit, cause_of
from actors.record import Record
from protocol.ids import EngineIndex


def ended(name: str, **changes: object) -> Record:
    record = Record(name)
    for key, value in changes.items():
        assert hasattr(record, key)
        setattr(record, key, value)
    return record


KILLED = {"was_killed": True}
OUTSIDE = {"ended_from_outside": True}
HUNG = {"has_hung": True, "was_killed": True}
WAITED = {"lost_rank": 1, "fault": "rank 1 has died"}
BROKE = {"fault": "ValueError: no"}


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ([WAITED, OUTSIDE, WAITED], 1),
        ([WAITED, HUNG, KILLED], 1),
        ([WAITED, KILLED, BROKE], 2),
        ([BROKE, KILLED, KILLED], 0),
        ([WAITED, {}, WAITED], 1),  # a crash: a signal of its own, or a status without a word
        ([HUNG, WAITED, KILLED], 0),
        ([BROKE, OUTSIDE], 1),
        ([WAITED, KILLED], 0),
    ],
)
async def test_the_cause_is_who_was_ended_or_hung_or_broke_and_not_who_waited_for_it(ends, cause):
    records = [ended(str(rank), **changes) for rank, changes in enumerate(ends)]
    assert cause_of(records) is records[cause]


async def test_an_engine_is_as_silent_as_its_most_silent_rank(autojump_clock):
    unit = EngineUnit(EngineIndex(2), 3)
    assert [state.name for state in unit.states()] == ["engine-2", "rank-2.1", "rank-2.2"]
    assert [state.is_needed for state in unit.states()] == [True, False, False]
    assert [state.engine_index for state in unit.states()] == [2, None, None]
    await trio.sleep(7)
    assert [state.heartbeat_age for state in unit.states()] == pytest.approx([7, 7, 7])


@pytest.mark.parametrize(("end", "cannot"), [(BROKE, True), (HUNG | {"fault": "it has not come in time"}, False)])
async def test_an_engine_can_start_no_more_than_the_rank_that_was_the_cause(end, cannot):
    unit = EngineUnit(EngineIndex(0), 2)
    lead, follower = unit.records
    lead.lost_rank, lead.fault = 1, "rank 1 has not come in time"
    for key, value in end.items():
        setattr(follower, key, value)
    unit.blame()
    assert lead.fault == f"rank-0.1: {follower.fault}"
    assert lead.cannot_start() is cannot
