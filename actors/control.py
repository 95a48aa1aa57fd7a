"""What passes between an actor and its parent while it lives: heartbeats and Ready upwards, Stop and news downwards.

Made by actors/child.py, one for each child process; actors' mains are handed it, and tell their phases by its pulse.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import assert_never, final

import trio

from actors.frames import FrameReader, FrameWriter
from protocol.phases import START
from protocol.spec import (
    ApiFacts,
    CheckGrammar,
    EngineFacts,
    Fault,
    FromChild,
    GrammarFacts,
    Heartbeat,
    Kv,
    KvEngine,
    KvFacts,
    OutputFacts,
    RankFacts,
    Ready,
    Start,
    Stop,
    ToChild,
    Weights,
    WeightsFacts,
)

HEARTBEAT_SECONDS = 1.0
START_HEARTBEAT_SECONDS = 0.2
"""Until it is ready: people look on."""
LEAVE_SECONDS = 3.0
"""After Stop, how long the main may take to unwind before the process simply ends."""
BREAK_OFF_SECONDS = 0.2
"""The same while it starts: what a thread loads then, nobody needs any more."""


@final
class Pulse:
    """What the heartbeat tells: an actor's main writes it, the heartbeat task reads it."""

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        """Whoever writes to it from another thread needs a clock that goes there too."""
        self.step = 0
        self.progress = 0.0
        self._clock = clock
        self._phase = START
        self._since = clock()

    def enter(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self._since = self._clock()
            self.progress = 0.0

    def beat(self) -> Heartbeat:
        return Heartbeat(self.step, self._phase, self._clock() - self._since, self.progress)


@final
class Control:
    """The child's side of the control pipes."""

    def __init__(self, reader: FrameReader[ToChild], writer: FrameWriter[FromChild]) -> None:
        self._reader = reader
        self._writer = writer
        self.pulse = Pulse(time.monotonic)
        self.is_ready = False
        self._ask, self.requests = trio.open_memory_channel[CheckGrammar](1)
        """What a grammar checker is asked; the other actors hear over links."""
        self._offer, self.weights = trio.open_memory_channel[Weights](math.inf)
        """What an engine is told of the weights actor: as often as that one is started."""
        self._tell_of_kv, self.kv = trio.open_memory_channel[Kv](math.inf)
        """What an engine or a rank is told of its connector."""
        self._tell_of_engine, self.engines = trio.open_memory_channel[KvEngine](math.inf)
        """What a connector is told of its engine."""

    async def ready(
        self, facts: EngineFacts | RankFacts | OutputFacts | ApiFacts | GrammarFacts | WeightsFacts | KvFacts
    ) -> None:
        gc.freeze()  # all that was loaded stays: the collector need not look at it again
        gc.enable()
        self.is_ready = True
        await self._writer.send(Ready(facts))

    @property
    def leave_seconds(self) -> float:
        return LEAVE_SECONDS if self.is_ready else BREAK_OFF_SECONDS

    async def send(self, message: FromChild) -> None:
        await self._writer.send(message)

    async def fault(self, message: str, lost_rank: int | None = None) -> None:
        await self._writer.send(Fault(message, lost_rank))

    async def beat_forever(self) -> None:
        while True:
            await self._writer.send(self.pulse.beat())
            await trio.sleep(HEARTBEAT_SECONDS if self.is_ready else START_HEARTBEAT_SECONDS)

    async def wait_for_stop(self) -> None:
        """Or for the parent's end; hands on what else comes in the meantime."""
        try:
            while not isinstance(message := await self._reader.receive(), Start | Stop):
                match message:
                    case CheckGrammar():
                        await self._ask.send(message)
                    case Weights():
                        self._offer.send_nowait(message)
                    case Kv():
                        self._tell_of_kv.send_nowait(message)
                    case KvEngine():
                        self._tell_of_engine.send_nowait(message)
                    case _:
                        assert_never(message)
        except (trio.EndOfChannel, trio.BrokenResourceError):
            pass
