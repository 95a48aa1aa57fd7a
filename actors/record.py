"""What the supervisor knows of one actor. Pure but for the clock: the supervisor writes it, and decides by it."""

from __future__ import annotations

from typing import final

import trio

from actors.handles import ActorState
from actors.running import Running
from protocol.ids import Epoch
from protocol.spec import Heartbeat

SILENT_TICKS = 10
"""Seconds without a heartbeat (they come every second, from another thread than the one that computes)."""
STUCK_TICKS = 300
"""Seconds that one step may take."""


@final
class Record:
    """What the supervisor knows of one actor, over all its incarnations."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = Epoch(0)
        self.process: Running | None = None
        self.ready = False
        self.was_ready = False
        self.heartbeat = Heartbeat(0, "down", 0.0)
        self.heard_at = trio.current_time()
        self.fault: str | None = None
        self.lost_rank: int | None = None
        """Of its engine, which it says it has waited for in vain."""
        self.has_hung = False
        self.was_killed = False
        """By us."""
        self.last_end: str | None = None
        self.ended_from_outside = False
        self.restarts = -1
        self.silent_ticks = 0
        self.stuck_ticks = 0

    def begin(self, epoch: Epoch, process: Running) -> None:
        self.epoch, self.process = epoch, process
        self.heartbeat, self.heard_at = Heartbeat(0, "start", 0.0), trio.current_time()
        self.silent_ticks = self.stuck_ticks = 0
        self.lost_rank, self.has_hung = None, False
        self.ended_from_outside = self.was_killed = False

    def end(self, process: Running) -> None:
        self.last_end, self.ended_from_outside = process.describe_end(), process.ended_from_outside()
        self.was_killed = process.ended_by_us

    def beat(self, heartbeat: Heartbeat) -> None:
        moved = heartbeat.step != self.heartbeat.step or heartbeat.phase != "step"
        self.heartbeat, self.heard_at, self.silent_ticks = heartbeat, trio.current_time(), 0
        if moved:
            self.stuck_ticks = 0

    def tick(self) -> str | None:
        """To be called once a second; what is wrong, if the actor is not to be waited for any longer.

        Ticks and not times: a supervisor that was itself held up has missed ticks, and blames nobody.
        """
        self.silent_ticks += 1
        self.stuck_ticks += 1
        if self.silent_ticks > SILENT_TICKS:
            return f"it has not been heard of for {SILENT_TICKS} s"
        if self.heartbeat.phase == "step" and self.stuck_ticks > STUCK_TICKS:
            return f"its step {self.heartbeat.step + 1} has not ended for {STUCK_TICKS} s"
        return None

    def cannot_start(self) -> bool:
        """It said why it could not start, and never could: that is the operator's to mend, trying again is no use. Of
        one that hung it is we who say something, and the next one may do better."""
        return self.fault is not None and not self.has_hung and not self.was_ready

    def state(self) -> ActorState:
        return ActorState(
            name=self.name,
            epoch=self.epoch,
            pid=self.process.pid if self.process else None,
            ready=self.ready,
            phase=self.heartbeat.phase if self.process else "down",
            phase_seconds=self.heartbeat.phase_age,
            heartbeat_age=trio.current_time() - self.heard_at,
            progress=self.heartbeat.progress,
            restarts=max(0, self.restarts),
            last_end=self.last_end,
        )
