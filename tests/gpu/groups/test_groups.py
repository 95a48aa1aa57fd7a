"""All groups do the same: alone, as threads, and as processes over gloo and shared memory."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.settings import default_cache_directory
from gpu.groups.group import Solo
from gpu.kernels.library import open_library
from protocol.parallel import ParallelSpec
from tests.helpers.group_conformance import DTYPES, EVERY_CALL, KINDS, Call, make_calls
from tests.helpers.rank_processes import RankPool, RankProcess, Task, answers, told
from tests.helpers.thread_groups import run_ranks

pytestmark = pytest.mark.process
MakeCalls = Callable[[int, list[Call]], list[list[str]]]
"""What each rank of a world of this size has made of them."""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    library = open_library(default_cache_directory())
    pool = RankPool(tmp_path_factory.mktemp("ranks"), None if library is None else library.path)
    yield pool
    pool.end()


def opened(pool: RankPool, implementation: str, tensor: int, pipeline: int = 1, **more: Any) -> list[RankProcess]:
    ranks = pool.open(tensor, pipeline, is_shared=implementation == "shared", **more)
    kind = "SharedGroup" if implementation == "shared" else "TorchGroup"
    made = answers(ranks)
    assert [answer.text or answer.what[2] for answer in made] == [kind] * (tensor * pipeline)
    return ranks


@pytest.fixture(params=["solo", "threads", "gloo", "shared"])
def implementation(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def in_ranks(pool: RankPool, implementation: str) -> MakeCalls:
    def make(size: int, calls: list[Call]) -> list[list[str]]:
        if implementation == "solo":
            return [make_calls(Solo(), calls)]
        if implementation == "threads":
            return run_ranks(lambda groups: make_calls(groups.world, calls), ParallelSpec(size))
        ranks = opened(pool, implementation, size)
        made = told(ranks, Task("call", calls=calls))
        told(ranks, Task("close"))
        assert [(answer.error, answer.text) for answer in made] == [(None, "")] * size
        return [answer.what for answer in made]

    return make


def sizes(implementation: str) -> list[int]:
    return [1] if implementation == "solo" else [2, 3, 4]


def test_every_call_gives_what_it_should_and_the_same_on_every_rank(in_ranks, implementation):
    for size in sizes(implementation):
        made = in_ranks(size, EVERY_CALL)
        assert len(made[0]) == len(EVERY_CALL)
        assert all(one == made[0] for one in made)


CALLS = st.builds(
    Call,
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(list(DTYPES)),
    shape=st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple),
    source=st.integers(0, 3),
    seed=st.integers(0, 1000),
    is_strided=st.booleans(),
)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(CALLS, min_size=1, max_size=40), size=st.integers(2, 3))
def test_calls_may_follow_each_other_in_any_order(in_ranks, implementation, calls, size):
    made = in_ranks(size if implementation != "solo" else 1, calls)
    assert all(one == made[0] for one in made)


@pytest.mark.parametrize("kind", ["gloo", "shared"])
def test_stages_of_several_ranks_have_groups_along_both_sides(pool, kind):
    ranks = opened(pool, kind, 2, 2)
    for group in ("tensor", "pipeline", "world", "control"):
        made = told(ranks, Task("call", group=group, calls=EVERY_CALL[::3]))
        assert [answer.text for answer in made] == [""] * 4
    told(ranks, Task("close"))


def test_shared_memory_sums_in_the_order_of_the_ranks_whatever_lies_beside(pool):
    """As threads do: their sums are taken one rank after the other."""
    calls = [call for call in EVERY_CALL if call.kind == "all_reduce"]
    ranks = opened(pool, "shared", 3)
    made = told(ranks, Task("call", calls=calls))
    told(ranks, Task("close"))
    assert made[0].what == run_ranks(lambda groups: make_calls(groups.world, calls), ParallelSpec(3))[0]


def test_messages_that_the_shared_memory_has_no_room_for_arrive_in_order(pool):
    ranks = opened(pool, "shared", 2)
    assert [answer.error for answer in told(ranks, Task("send_many"))] == [None, None]
    told(ranks, Task("close"))


def test_who_sends_holds_no_more_than_some_messages(pool):
    ranks = opened(pool, "gloo", 2)
    held, received = (answer.what for answer in told(ranks, Task("send_large")))
    told(ranks, Task("close"))
    assert held == [40 * 2**20] * 4
    assert received == [0.0, 1.0, 2.0, 3.0]


def test_who_waits_for_long_sleeps(pool):
    ranks = opened(pool, "shared", 3)
    waited = told(ranks, Task("wait_late"))
    told(ranks, Task("close"))
    assert max(answer.what for answer in waited[1:]) < 0.1


@pytest.mark.parametrize("kind", ["gloo", "shared"])
def test_the_first_rank_s_word_is_waited_for_without_limit(pool, kind):
    ranks = opened(pool, kind, 2, seconds=0.4)
    made = told(ranks, Task("idle", group="control", seconds=0.4))
    told(ranks, Task("close"))
    assert [answer.what for answer in made] == [[0, 0, 0]] * 2


def test_ranks_that_call_for_different_things_are_told_so(pool):
    ranks = opened(pool, "shared", 2)
    made = told(ranks, Task("differ"))
    told(ranks, Task("close"))
    assert {answer.error for answer in made} == {"AssertionError"}
    assert "rank 1 makes another call" in made[0].text


@pytest.mark.parametrize("kind", ["gloo", "shared"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_is_named_long_before_the_time_is_over(pool, kind, victim):
    ranks = opened(pool, kind, 3, seconds=600.0)
    assert [answer.what for answer in told(ranks, Task("sum_on"))] == ["begun"] * 3
    ranks[victim].send_signal(signal.SIGKILL)
    others = [rank for rank in ranks if rank is not ranks[victim]]
    for answer in answers(others):
        assert (answer.error, answer.rank) == ("RankLostError", victim), answer
        # gloo may see connections end a moment before the process has.
        assert f"rank {victim} has died" in answer.text or kind == "gloo"


@pytest.fixture
def address() -> str:
    """Of a port that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"tcp://127.0.0.1:{free.getsockname()[1]}/test"


@pytest.mark.parametrize(
    ("kind", "victim", "is_on_one_host"),
    [("gloo", 0, True), ("gloo", 2, False), ("gloo", 0, False), ("shared", 0, True), ("shared", 2, True)],
)
def test_a_rank_that_hangs_is_named_when_the_time_is_over(pool, kind, victim, is_on_one_host, address):
    """The first rank keeps the notes that all others leave at an address."""
    ranks = opened(pool, kind, 3, seconds=1.0, address="" if is_on_one_host else address)
    assert [answer.what for answer in told(ranks, Task("sum_on"))] == ["begun"] * 3
    ranks[victim].send_signal(signal.SIGSTOP)
    others = [rank for rank in ranks if rank is not ranks[victim]]
    try:
        made = answers(others)
    finally:
        ranks[victim].send_signal(signal.SIGCONT)
    assert [(answer.error, answer.rank) for answer in made] == [("RankLostError", victim)] * 2, made
    assert all(f"rank {victim} has not come in time" in answer.text for answer in made)
    assert ranks[victim].hear().error == "RankLostError"  # the others have left


def test_a_rank_that_does_not_come_at_all_is_noticed(pool):
    (rank,) = pool.open(2, is_shared=False, start_seconds=0.5, missing=1)
    answer = rank.hear()
    assert answer.error == "RankLostError"
    assert "the start of the ranks" in answer.text
