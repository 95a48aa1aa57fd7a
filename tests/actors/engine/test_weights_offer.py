"""The offer of the weights actor on its way to the thread that loads, which nobody leaves waiting."""

from __future__ import annotations

import math

import trio
import trio.testing

from actors.engine.weights_offer import open_offer
from protocol.ids import EngineIndex, Epoch
from protocol.spec import EngineSpec, SharedWeights, Weights, WeightsFacts

SHARE = SharedWeights("/m", 1)


def spec(seconds: float | None) -> EngineSpec:
    return EngineSpec(EngineIndex(0), Epoch(1), "", {}, "/m", weights_seconds=seconds)


class Told:
    """The part of a control that matters here."""

    def __init__(self) -> None:
        self.tell, self.weights = trio.open_memory_channel[Weights](math.inf)


async def test_without_a_weights_actor_there_is_no_offer():
    async with open_offer(spec(None), Told()) as offer:
        assert offer is None


async def test_a_thread_that_waits_is_told_what_there_is():
    control = Told()
    async with open_offer(spec(60.0), control) as offer, trio.open_nursery() as nursery:
        found = []

        async def wait() -> None:
            found.append(await trio.to_thread.run_sync(offer.wait, "/m"))

        nursery.start_soon(wait)
        control.tell.send_nowait(Weights(WeightsFacts([SHARE])))
    assert found == [SHARE]


async def test_a_thread_that_waits_is_let_go_when_the_engine_is_cancelled():
    with trio.fail_after(5), trio.CancelScope() as engine:
        async with open_offer(spec(60.0), Told()) as offer, trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, offer.wait, "/m")
            await trio.testing.wait_all_tasks_blocked()
            engine.cancel()
    assert engine.cancelled_caught
