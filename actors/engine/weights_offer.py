"""The way of the weights actor's offer from the control pipe to the thread that loads. Used by actors/engine/main."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from actors.control import Control
from gpu.draft_spec import draft_spec
from gpu.shared_weights import WeightsOffer
from protocol.spec import EngineSpec


@asynccontextmanager
async def open_offer(spec: EngineSpec, control: Control) -> AsyncIterator[WeightsOffer | None]:
    """What the supervisor says of the weights actor, for as long as the body runs. None if there is no such actor.

    On leaving, nobody waits for it any longer: the loading thread is waited for after that.
    """
    if spec.weights_seconds is None:
        yield None
        return
    draft = draft_spec(spec)
    checkpoints = [spec.checkpoint] if draft is None else [spec.checkpoint, draft.checkpoint]
    offer = WeightsOffer(spec.weights_seconds, checkpoints)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hear, offer, control)
        yield offer
        nursery.cancel_scope.cancel()


async def _hear(offer: WeightsOffer, control: Control) -> None:
    try:
        while True:
            offer.take((await control.weights.receive()).facts)
    finally:
        offer.take(None)
