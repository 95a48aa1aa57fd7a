"""The weights actor as a process: has each checkpoint's weights laid out once, and keeps them for engines to map.

An engine that is started again finds them there, and several engines have them once. It hears nothing and does nothing
after that: what it holds is its descriptors.
"""

from __future__ import annotations

import trio

from actors.control import Control
from gpu.load_report import LoadReport
from gpu.weights_host import WeightsHost
from protocol.spec import WeightsSpec


async def run_weights_process(spec: WeightsSpec, control: Control) -> None:
    """Share what there is to share, and hold it until cancelled. Raises CheckpointError for what no engine can load."""
    pulse = control.pulse
    pulse.enter("load")

    def report(progress: float) -> None:
        pulse.progress = progress

    with WeightsHost(spec.engine) as host:
        facts = await trio.to_thread.run_sync(host.share, LoadReport(report, pulse.enter), abandon_on_cancel=True)
        pulse.enter("idle")
        await control.ready(facts)
        await trio.sleep_forever()
