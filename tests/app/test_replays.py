"""Who goes on in which order after engines have died."""

from __future__ import annotations

import pytest

from app.incidents import Incidents
from app.journal import MAX_DEATHS, TRIAL_DEATHS, Entry
from app.mailbox import ActorGeneration
from app.replays import Replays
from protocol.ids import EngineIndex, Epoch, RequestId
from tests.helpers.engine_conformance import a_prompt

ENGINE = (EngineIndex(0), Epoch(1))
OTHER = (EngineIndex(1), Epoch(1))


def entries(*names: str) -> dict[RequestId, Entry]:
    ids = [RequestId(name) for name in names]
    return {one: Entry(one, a_prompt(), ActorGeneration([one]), 0.0) for one in ids}


@pytest.fixture
def incidents() -> Incidents:
    return Incidents()


def names(found: list[Entry]) -> list[str]:
    return [entry.request_id for entry in found]


def test_all_that_wait_are_due_at_once_while_none_is_suspected(incidents: Incidents) -> None:
    live = entries("a", "b", "c")
    live[RequestId("b")].engine = ENGINE

    assert names(Replays(live, incidents).take_due()) == ["a", "c"]
    assert incidents.replays == 2


def test_a_suspect_goes_first_and_alone_and_nothing_beside_it(incidents: Incidents) -> None:
    live = entries("a", "b", "c")
    live[RequestId("b")].deaths = live[RequestId("c")].deaths = TRIAL_DEATHS
    replays = Replays(live, incidents)

    (suspect,) = replays.take_due()
    assert suspect.request_id == "b"
    suspect.engine = ENGINE
    assert replays.take_due() == []
    assert replays.num_waiting == 2
    suspect.deaths = 0  # its first token has come
    assert names(replays.take_due()) == ["c"]


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
    assert names(replays.take_due()) == ["a"]
    assert live[RequestId("a")].deaths == 0


def test_each_engine_s_load_is_what_it_has(incidents: Incidents) -> None:
    live = entries("a", "b", "c", "d")
    for name, engine in {"a": ENGINE, "b": OTHER, "c": OTHER}.items():
        live[RequestId(name)].engine = engine

    assert Replays(live, incidents).loads() == {0: 1, 1: 2}
