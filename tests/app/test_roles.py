"""Which engine a request goes to where some compute prompts and others go on, and what each is told."""

from __future__ import annotations

import attrs
import pytest

from app.engine import Prompt
from app.incidents import Incidents
from app.journal import MOST_AHEAD, TRIAL_DEATHS, Entry
from app.mailbox import ActorGeneration
from app.replays import Due, Replays
from app.roles import Roles
from protocol.ids import EngineIndex, Epoch, RequestId
from protocol.kv import KvParams
from protocol.messages import RequestOutput
from protocol.pooling import Pooling, PoolingParams
from protocol.sampling import SamplingParams

ROLES = Roles(1)
BOTH = [EngineIndex(0), EngineIndex(1)]


def entry(*token_ids: int, max_tokens: int = 8, ticket: bytes = b"", **prompt: object) -> Entry:
    made = Entry(
        RequestId("r"),
        Prompt([1, 2], SamplingParams(seed=1, max_tokens=max_tokens), **prompt),
        ActorGeneration([RequestId("r")]),
        0.0,
    )
    return attrs.evolve(made, token_ids=list(token_ids), kv_ticket=ticket)


def test_new_ones_go_to_those_that_compute_prompts_and_others_to_those_that_go_on() -> None:
    new, old = entry(), entry(5)
    assert list(ROLES.divide([old, new], BOTH)) == [([new], [0]), ([old], [1])]
    assert list(ROLES.divide([new], BOTH)) == [([new], [0])]


def test_what_another_server_has_computed_goes_on_like_what_was_computed_here() -> None:
    taken_over = entry(kv=KvParams(b"s", must_load=True))
    assert list(ROLES.divide([taken_over], BOTH)) == [([taken_over], [1])]
    assert ROLES.kv_params(taken_over, EngineIndex(1), BOTH) == KvParams(b"s", must_load=True)


@pytest.mark.parametrize(
    ("what", "among", "serving", "waits"),
    [
        (entry(5), BOTH[:1], BOTH, True),
        (entry(5, ticket=b"t"), BOTH[:1], BOTH, True),
        (entry(kv=KvParams(b"s")), BOTH[:1], BOTH, True),
        (entry(5), BOTH, BOTH, False),
        (entry(5), BOTH[:1], BOTH[:1], False),  # nobody of the right kind is there
        (entry(), BOTH[1:], BOTH, False),  # a prompt is computed at once, whoever does it
    ],
)
def test_who_is_to_go_on_waits_for_an_engine_of_its_kind_that_is_only_not_heard_yet(
    what, among, serving, waits
) -> None:
    replays = Replays({what.request_id: what}, Incidents(), ROLES)
    assert replays.take_due(among, serving) == ([] if waits else [Due([what], list(among))])
    assert Replays({what.request_id: what}, Incidents()).take_due(among, serving) != []


def test_whoever_serves_does_the_others_work_as_well() -> None:
    new, old = entry(), entry(5)
    for only in BOTH:
        assert list(ROLES.divide([old, new], [only])) == [([new], [only]), ([old], [only])]


def test_without_roles_all_engines_do_everything() -> None:
    entries = [entry(), entry(5)]
    assert list(Roles().divide(entries, BOTH)) == [(entries, BOTH)]
    assert Roles().kv_params(entries[0], EngineIndex(0), BOTH) is None


@pytest.mark.parametrize(
    ("what", "index", "serving", "told"),
    [
        (entry(), 0, BOTH, KvParams(hands_over=True)),
        (entry(), 0, BOTH[:1], None),  # nobody is there to go on
        (entry(), 1, BOTH[1:], None),  # who goes on does it all
        (entry(5), 0, BOTH[:1], None),
        (entry(5, ticket=b"t"), 1, BOTH, KvParams(b"t")),
        (entry(5, kv=KvParams(b"s", must_load=True)), 1, BOTH, KvParams(b"s")),  # it was loaded once
        (entry(max_tokens=1), 0, BOTH, None),  # over with the first token
        (entry(pooling=PoolingParams(Pooling.LAST), max_tokens=0), 0, BOTH, None),
        (entry(kv=KvParams(exports=True)), 0, BOTH, KvParams(exports=True)),  # for another server's engines
        (entry(kv=KvParams(b"s", must_load=True)), 0, BOTH, KvParams(b"s", hands_over=True, must_load=True)),
    ],
)
def test_each_is_told_what_becomes_of_what_it_computes(what, index, serving, told) -> None:
    assert ROLES.kv_params(what, EngineIndex(index), serving) == told


def test_a_suspect_is_tried_in_an_engine_of_its_kind() -> None:
    for suspect, index in ((entry(), 0), (entry(5), 1)):
        suspect.deaths = TRIAL_DEATHS
        replays = Replays({suspect.request_id: suspect}, Incidents(), ROLES)
        assert [due.among for due in replays.take_due(BOTH)] == [[index]]
        assert [due.among for due in replays.take_due(BOTH[1 - index :][:1])] == [[1 - index]]


def test_a_request_weighs_what_its_engine_does_of_it() -> None:
    one = entry(max_tokens=1000)
    one.send_to((BOTH[0], Epoch(1)), 0, hands_over=True)
    assert one.load == 2 + 1
    one.deliver(RequestOutput(one.request_id, 0, [5], ""), BOTH[0])
    assert one.load == MOST_AHEAD, "it goes on there, where there is no connector"
    one.hand_over(b"ticket")
    one.send_to((BOTH[1], Epoch(1)), 3)
    assert one.load == MOST_AHEAD
