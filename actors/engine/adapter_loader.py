"""Brings adapters to the runner and away from it, as actors/engine/adapter_places.py decides. Files are read beside the
steps; the runner itself is touched between two of them. Used by actors/engine/main.py and its operations.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import final

import trio

from actors.engine.adapter_places import AdapterChange
from actors.engine.scheduler import Addressed, Scheduler
from actors.engine.stepper import Stepper
from actors.engine.turns import Turn, Turns
from gpu.lora_checkpoint import AdapterWeights
from gpu.runner import Runner
from protocol.errors import BadRequestError, TrillmError
from protocol.lora import LoraId, LoraRequest
from protocol.lora_files import lora_id_of
from protocol.operations import LoraState

READING_SECONDS = 100.0
"""For the files of one adapter; the app waits a little longer for the answer (app/engine_calls.py)."""

logger = logging.getLogger("trillm.engine")


@final
class AdapterLoader:
    """Of one engine. The runner gets and loses adapters in the order in which that was decided, so that one that is to
    come back comes back after it has left."""

    def __init__(
        self,
        scheduler: Scheduler,
        stepper: Stepper,
        publish: Callable[[Iterable[Addressed]], None],
        max_kept: int = 0,
    ) -> None:
        """`publish` sends the last outputs of requests whose adapter cannot be had. `max_kept` adapters are remembered
        when they have been read."""
        self._scheduler = scheduler
        self._stepper = stepper
        self._publish = publish
        self._turns = Turns()
        self._max_kept = max_kept
        self._kept: OrderedDict[LoraId, AdapterWeights] = OrderedDict()
        """The one that was needed longest ago first."""

    def begin(self, changes: list[AdapterChange], nursery: trio.Nursery, moved: Callable[[], None]) -> None:
        """Make these changes, in tasks; `moved` is called after each. To be called right after they were decided."""
        for change in changes:
            nursery.start_soon(self._change, change, self._turns.take(), moved)

    async def _change(self, change: AdapterChange, turn: Turn, moved: Callable[[], None]) -> None:
        leaving, coming = change.leaving, change.coming
        async with turn:
            if leaving is not None:
                await self._stepper.apply(lambda runner: runner.remove_lora(leaving))
        if coming is None:
            return
        try:
            weights = await self._weights(coming)
            await self._stepper.apply(lambda runner: runner.add_lora(coming, weights))
        except TrillmError as error:
            logger.warning("adapter %s: %s", coming.name, error.message)
            self._publish(self._scheduler.fail_adapter(coming.lora_id, error.message))
        else:
            self._scheduler.adapters.arrive(coming.lora_id)
        moved()

    async def add(self, lora: LoraRequest) -> LoraState:
        """Read it, and bring it to the runner if there is a place. Raises BadRequestError, or what the runner says."""
        weights = await self._weights(lora)
        if self._scheduler.adapters.reserve(lora):
            try:
                async with self._turns.take():
                    await self._stepper.apply(lambda runner: runner.add_lora(lora, weights))
            except TrillmError as error:
                self._publish(self._scheduler.fail_adapter(lora.lora_id, error.message))
                raise
            self._scheduler.adapters.arrive(lora.lora_id)
        return self._scheduler.adapters.state

    def remove(self, lora_id: LoraId) -> LoraState:
        self._kept.pop(lora_id, None)
        self._scheduler.adapters.discard(lora_id)
        return self._scheduler.adapters.state

    def pin(self, lora_id: LoraId) -> LoraState:
        """Raises ConflictError."""
        self._scheduler.adapters.pin(lora_id)
        return self._scheduler.adapters.state

    async def _weights(self, lora: LoraRequest) -> AdapterWeights:
        """Raises BadRequestError."""
        if (weights := self._kept.get(lora.lora_id)) is None:
            weights = await self._read(lora)
        if self._max_kept:
            self._kept[lora.lora_id] = weights
            self._kept.move_to_end(lora.lora_id)
            while len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
        return weights

    async def _read(self, lora: LoraRequest) -> AdapterWeights:
        """Raises BadRequestError."""
        try:
            with trio.fail_after(READING_SECONDS):
                return await self._stepper.beside(lambda runner: read_unchanged(runner, lora))
        except trio.TooSlowError:
            reason = f"its files could not be read within {READING_SECONDS:g} s"
        except BadRequestError as error:
            reason = error.message
        except Exception:  # the boundary of one adapter: whatever is in its files ends only those who ask for it
            logger.exception("reading adapter %s", lora.name)
            reason = "its files could not be read"
        raise BadRequestError(f"The adapter {lora.name} cannot be computed with: {reason}")


def read_unchanged(runner: Runner, lora: LoraRequest) -> AdapterWeights:
    """Raises BadRequestError, also for files that are not those that the request was made for."""
    path = Path(lora.path)
    weights = runner.read_adapter(path)
    # Behind the reading: files that change while they are read are not those of this id any more.
    if lora_id_of(lora.name, path) != lora.lora_id:
        raise BadRequestError("its files have been changed since it was loaded; load it again in place (load_inplace)")
    return weights
