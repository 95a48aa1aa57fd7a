"""Who goes on in which order after engines have died."""

from __future__ import annotations

import pytest

from app.incidents import Incidents
from app.journal import MAX_DEATHS, TRIAL_DEATHS, Entry
from app.mailbox import ActorGeneration
from app.replays import Replays
from protocol.ids import EngineIndex, Epoch, RequestId
from protocol.messages import RequestOutput
from tests.helpers.engine_conformance import a_prompt

ENGINE = (EngineIndex(0), Epoch(1))
OTHER = (EngineIndex(1), Epoch(1))
ALONE, BOTH = [ENGINE[0]], [ENGINE[0], OTHER[0]]


def entries(*names: str) -> dict[RequestId, Entry]:
    ids = [RequestId(name) for name in names]
    return {one: Entry(one, a_prompt(), ActorGeneration([one]), 0.0) for one in ids}


@pytest.fixture
def incidents() -> Incidents:
    return Incidents()


def names(found: list[Entry]) -> list[str]:
    return [entry.request_id for entry in found]


def taken(replays: Replays, among: list[EngineIndex]) -> list[tuple[list[str], list[EngineIndex]]]:
    return [(names(due.entries), due.among) for due in replays.take_due(among)]


def test_all_that_wait_are_due_at_once_while_none_is_suspected(incidents: Incidents) -> None:
    live = entries("a", "b", "c")
    live[RequestId("b")].engine = ENGINE

    assert taken(Replays(live, incidents), ALONE) == [(["a", "c"], ALONE)]
    assert incidents.replays == 2


def test_a_suspect_goes_first_and_alone_and_nothing_beside_it(incidents: Incidents) -> None:
    live = entries("a", "b", "c")
    live[RequestId("b")].deaths = live[RequestId("c")].deaths = TRIAL_DEATHS
    replays = Replays(live, incidents)

    assert taken(replays, ALONE) == [(["b"], ALONE)]
    live[RequestId("b")].engine = ENGINE
    assert taken(replays, ALONE) == []
    assert replays.num_waiting == 2
    live[RequestId("b")].deaths = 0  # its first token has come
    assert taken(replays, ALONE) == [(["c"], ALONE)]


def test_with_several_engines_the_others_go_on_beside_a_suspect(incidents: Incidents) -> None:
    live = entries("a", "b", "c")
    live[RequestId("a")].engine = ENGINE
    live[RequestId("b")].deaths = TRIAL_DEATHS
    replays = Replays(live, incidents)

    assert taken(replays, BOTH) == [(["b"], [OTHER[0]]), (["c"], [ENGINE[0]])]
    live[RequestId("b")].engine = OTHER
    assert replays.away_from_trials(BOTH) == ALONE
    assert replays.away_from_trials([OTHER[0]]) == [OTHER[0]], "there is no other"


def test_who_has_an_engine_that_is_not_heard_waits_for_it_until_it_is_heard_or_gone(incidents: Incidents) -> None:
    live = entries("a", "b")
    live[RequestId("a")].engine, live[RequestId("b")].engine = ENGINE, OTHER
    replays = Replays(live, incidents)
    replays.send_home("output-0")
    for entry in live.values():
        entry.engine = None

    assert taken(replays, ALONE) == []
    replays.come_home(ENGINE[0])
    assert taken(replays, ALONE) == [(["a"], ALONE)]
    replays.lose(OTHER, is_innocent=True)
    assert taken(replays, ALONE) == [(["a", "b"], ALONE)]


def test_a_death_counts_for_what_ran_there_and_condemns_at_the_limit(incidents: Incidents) -> None:
    live = entries("a", "b", "c")
    replays = Replays(live, incidents)
    condemned = []
    for _ in range(MAX_DEATHS):
        live[RequestId("a")].engine, live[RequestId("b")].engine = ENGINE, OTHER
        condemned.append(names(replays.lose(ENGINE, is_innocent=False)))

    assert condemned == [[]] * (MAX_DEATHS - 1) + [["a"]]
    assert [entry.deaths for entry in live.values()] == [MAX_DEATHS, 0, 0]
    assert (incidents.quarantined, incidents.condemned) == (1, 1)


def test_nobody_is_blamed_for_an_engine_that_somebody_killed(incidents: Incidents) -> None:
    live = entries("a")
    live[RequestId("a")].engine = ENGINE
    replays = Replays(live, incidents)

    assert replays.lose(ENGINE, is_innocent=True) == []
    assert taken(replays, ALONE) == [(["a"], ALONE)]
    assert live[RequestId("a")].deaths == 0


def test_each_engine_s_load_is_what_it_has_still_to_compute(incidents: Incidents) -> None:
    live = entries("a", "b", "c", "d")  # of 3 prompt tokens, and 8 to be generated
    for name, engine in {"a": ENGINE, "b": OTHER, "c": OTHER}.items():
        live[RequestId(name)].send_to(engine, num_cached=1)
    live[RequestId("c")].deliver(RequestOutput(RequestId("c"), 0, [5, 6], "ab"), OTHER[0])

    assert Replays(live, incidents).loads() == {0: 2 + 8, 1: 2 + 8 + 8 - 2}
