"""The rank actor: a process that does its part of what its engine's process computes, as that tells it.

It hears commands in its compute thread (gpu/ranks), not over links. Here is what every actor has: the control pipe, the
heartbeat that tells of that thread, and what the weights actor offers.
"""

from __future__ import annotations

from functools import partial

import trio

from actors.control import Control, Pulse
from actors.engine.weights_offer import open_offer
from gpu.load_report import LoadReport
from gpu.shared_weights import WeightsOffer
from protocol.phases import IMPORT
from protocol.spec import LoadFormat, RankFacts, RankSpec


async def run_rank_process(spec: RankSpec, control: Control) -> None:
    """Follow until cancelled; the thread is left behind then, and ends with the process. Raises RankLostError when
    another rank is gone, and what breaks this one."""
    pulse = control.pulse
    if spec.engine.load_format is LoadFormat.DUMMY:  # as its engine, which computes nothing either
        pulse.enter("idle")
        await control.ready(RankFacts())
        await trio.sleep_forever()
    pulse.enter("load")
    loaded = trio.Event()
    token = trio.lowlevel.current_trio_token()

    async def say_ready() -> None:
        await loaded.wait()
        await control.ready(RankFacts())

    async with open_offer(spec.engine, control) as offer, trio.open_nursery() as nursery:
        nursery.start_soon(say_ready)
        compute = partial(_follow, spec, pulse, partial(token.run_sync_soon, loaded.set), offer)
        await trio.to_thread.run_sync(compute, abandon_on_cancel=True)


def _follow(spec: RankSpec, pulse: Pulse, loaded: partial[None], offer: WeightsOffer | None) -> None:
    """The thread's main."""
    pulse.enter(IMPORT)
    from gpu.ranks.follower import follow  # imports torch

    def report(progress: float) -> None:
        pulse.progress = progress

    follow(spec.engine, spec.rank, LoadReport(report, pulse.enter), loaded, offer, pulse)
