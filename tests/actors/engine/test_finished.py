"""What is remembered of finished requests is bounded in number and in size."""

from __future__ import annotations

from actors.engine.finished import FinishedSequences
from actors.engine.sequence import Sequence
from protocol.ids import ClientIndex, RequestId
from tests.helpers.scheduling import a_request


def a_sequence(request_id: str, num_prompt_tokens: int = 3, client: int = 0) -> Sequence:
    return Sequence(a_request(request_id, range(num_prompt_tokens), client=client), arrival=1, max_num_tokens=99)


def known(finished: FinishedSequences, *request_ids: str) -> list[str]:
    return [request_id for request_id in request_ids if finished.get(RequestId(request_id)) is not None]


def test_the_oldest_goes_first():
    finished = FinishedSequences(max_sequences=2)
    for name in ("a", "b", "c"):
        finished.remember(a_sequence(name))
    assert known(finished, "a", "b", "c") == ["b", "c"]


def test_long_ones_push_out_more_than_one():
    finished = FinishedSequences(max_weight=10)
    for name in ("a", "b", "c"):
        finished.remember(a_sequence(name, 3))
    finished.remember(a_sequence("d", 7))
    assert known(finished, "a", "b", "c", "d") == ["c", "d"]


def test_one_that_is_too_long_is_still_remembered_alone():
    finished = FinishedSequences(max_weight=10)
    finished.remember(a_sequence("a"))
    finished.remember(a_sequence("b", 100))
    assert known(finished, "a", "b") == ["b"]
    finished.remember(a_sequence("c"))
    assert known(finished, "b", "c") == ["c"]


def test_remembering_again_replaces():
    finished = FinishedSequences(max_weight=10)
    for _ in range(5):
        finished.remember(a_sequence("a", 4))
    finished.remember(a_sequence("b", 6))
    assert known(finished, "a", "b") == ["a", "b"]


def test_a_client_is_forgotten_as_a_whole():
    finished = FinishedSequences()
    for index, name in enumerate(("a", "b", "c")):
        finished.remember(a_sequence(name, client=index % 2))
    finished.forget_client(ClientIndex(0))
    assert known(finished, "a", "b", "c") == ["b"]
