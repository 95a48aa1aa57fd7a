"""What waits for a slow reader: of each engine apart, and never more than of two."""

from __future__ import annotations

from app.mailbox import ActorGeneration
from protocol.ids import EngineIndex, RequestId
from protocol.messages import FinishReason, RequestOutput

FIRST, SECOND, THIRD = map(EngineIndex, range(3))


def output(offset: int, token: int, name: str = "a", end: FinishReason | None = None) -> RequestOutput:
    return RequestOutput(RequestId(name), offset, [token], str(token), finish_reason=end)


async def read(generation: ActorGeneration) -> list[tuple[int, EngineIndex, list[int]]]:
    return [(index, generation.engine(index), one.token_ids) for index, one in await generation.receive()]


async def test_what_one_engine_says_is_read_at_once() -> None:
    generation = ActorGeneration([RequestId("a"), RequestId("b")])
    for place in range(3):
        generation.put(output(place, place), FIRST)
    generation.put(output(0, 7, "b"), SECOND)
    assert await read(generation) == [(0, FIRST, [0, 1, 2]), (1, SECOND, [7])]


async def test_what_was_said_by_an_engine_that_had_it_before_is_read_apart_and_before() -> None:
    generation = ActorGeneration([RequestId("a"), RequestId("b")])
    generation.put(output(0, 0, "b"), FIRST)
    for place, engine in enumerate((FIRST, FIRST, SECOND, SECOND)):
        generation.put(output(place, place), engine)
    assert await read(generation) == [(0, FIRST, [0, 1])]
    assert not generation.finished
    generation.put(output(4, 4, end=FinishReason.LENGTH), SECOND)
    generation.put(output(1, 1, "b", FinishReason.LENGTH), FIRST)
    assert not generation.finished
    assert await read(generation) == [(0, SECOND, [2, 3, 4]), (1, FIRST, [0, 1])]
    assert generation.finished


async def test_however_many_engines_had_it_two_deltas_wait_at_most() -> None:
    generation = ActorGeneration([RequestId("a")])
    for place, engine in enumerate((FIRST, SECOND, THIRD, FIRST, THIRD)):
        generation.put(output(place, place), engine)
    assert await read(generation) == [(0, FIRST, [0])]
    assert await read(generation) == [(0, THIRD, [1, 2, 3, 4])]
