"""Which server is asked next."""

from __future__ import annotations

from app.proxy.address import read_address
from app.proxy.upstream import BUSY_SECONDS, MOST_REST_SECONDS, REST_SECONDS
from app.proxy.upstreams import Upstreams


def three() -> Upstreams:
    return Upstreams("decode", [read_address("--decode", f"http://d{n}") for n in range(3)])


def test_the_one_with_the_fewest_requests_is_asked_and_of_equals_the_one_that_has_waited_longest() -> None:
    servers = three()
    first, second, third = servers
    assert [servers.choose(0) for _ in range(4)] == [first, second, third, first]
    turns = [first.begin(), first.begin(), second.begin(), third.begin()]
    assert [servers.choose(0) for _ in range(3)] == [second, third, second]
    for turn in turns[:2]:
        turn.end()
    assert servers.choose(0) is first


def test_none_is_asked_twice_for_the_same_request() -> None:
    servers = three()
    tried = set()
    for _ in range(3):
        tried.add(servers.choose(0, tried))
    assert tried == set(servers)
    assert servers.choose(0, tried) is servers.choose(0, tried, also_resting=True) is None


def test_who_has_failed_rests_and_longer_each_time() -> None:
    servers = three()
    [first, *others] = servers
    now, rests = 100.0, []
    for _ in range(6):
        assert servers.choose(now, others) is first
        first.begin().end()
        rests.append(first.has_failed(now))
        assert servers.choose(now + rests[-1] - 0.1, others) is None
        assert servers.choose(now + rests[-1] - 0.1, others, also_resting=True) is first
        now += rests[-1]
    assert rests == [REST_SECONDS, 10, 20, 40, MOST_REST_SECONDS, MOST_REST_SECONDS]
    assert [first.is_well(), first.is_well()] == [True, False]
    assert first.has_failed(now) == REST_SECONDS
    assert [first.is_busy(now), first.is_busy(now)] == [True, False]


def test_requests_that_fail_together_are_one_failure() -> None:
    [first, *_] = three()
    assert [first.has_failed(10.0 + late) for late in (0.0, 0.0, 1.0)] == [5.0, 5.0, 4.0]
    assert first.has_failed(15) == 10


def test_one_request_tries_whether_a_server_is_well_again() -> None:
    servers = three()
    [first, *others] = servers
    first.has_failed(0)
    trial = first.begin()
    assert servers.choose(6, others) is None
    trial.end()
    assert servers.choose(6, others) is first
    trial = first.begin()
    first.is_well()
    assert servers.choose(6, others) is first
    trial.end()


def test_who_is_busy_is_not_asked_for_a_moment_whatever_it_is_at() -> None:
    servers = three()
    [first, *others] = servers
    turn = first.begin()
    first.is_busy(10)
    assert servers.choose(10, others) is None
    assert servers.choose(10 + BUSY_SECONDS, others) is first
    turn.end()


def test_of_those_that_rest_the_first_to_have_rested_is_asked_where_there_is_no_other() -> None:
    servers = three()
    for when, server in zip((3, 1, 2), servers, strict=True):
        server.has_failed(when)
    _, second, _ = servers
    assert servers.choose(4, also_resting=True) is second


def test_a_request_that_began_before_the_failure_is_no_trial() -> None:
    [server, *_] = three()
    old = server.begin()
    server.has_failed(0)
    old.end()
    assert server.on_trial is None
    assert server.num_in_flight == 0
