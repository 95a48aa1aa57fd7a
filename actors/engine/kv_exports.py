"""Sequences that are over but for the ticket that their last output is to have: their blocks are still to be saved, or
the connector has not answered yet. Pure; used by actors/engine/kv_side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import attrs

from actors.engine.finish import Finish
from actors.engine.kv_saves import KvSaves
from actors.engine.sequence import Sequence
from protocol.ids import Epoch
from protocol.kv import BlockHash, ExportId, KvDecline, KvExport, KvExported, KvInput

GRACE_SECONDS = 0.5
NO_TICKET = b""


@attrs.define(eq=False)
class Export:
    """Of one sequence."""

    sequence: Sequence
    finish: Finish | None
    """How it ends; None if it goes on elsewhere."""
    offset: int
    """Of the first output token that was not told yet."""
    hashes: list[BlockHash]
    """Of its full blocks."""
    num_saved: int = 0
    number: ExportId | None = None
    """Once the connector has been asked."""
    ticket: bytes = NO_TICKET
    """For some of them; the rest is being saved anew."""
    is_second: bool = False
    """It was asked for all of them before, and had some no more."""
    deadline: float = math.inf


@final
class KvExports:
    """Each ends with `hear`, `passed`, `advance` or `drop`."""

    def __init__(self, epoch: Epoch, seconds: float, say: Callable[[KvInput], None]) -> None:
        self._epoch = epoch
        self._seconds = seconds
        self._say = say
        self._of: dict[Sequence, Export] = {}
        """In the order of their deadlines, if all have one."""
        self._asked: dict[ExportId, Export] = {}
        self._saving: dict[Sequence, Export] = {}
        self._num_asked = 0

    def __len__(self) -> int:
        return len(self._of)

    @property
    def is_saving(self) -> bool:
        """Some wait for blocks to be saved."""
        return bool(self._saving)

    @property
    def num_lacking(self) -> int:
        """Blocks that they wait for, or more."""
        return sum(len(export.hashes) - export.num_saved for export in self._saving.values())

    @property
    def next_deadline(self) -> float:
        """One that has none yet is to be looked at now."""
        first = next(iter(self._of.values()), None)
        if first is None:
            return math.inf
        last = next(reversed(self._of.values()))
        return first.deadline if last.deadline < math.inf else -math.inf

    def begin(self, export: Export) -> None:
        """It waits from the next look on."""
        self._of[export.sequence] = self._saving[export.sequence] = export

    def hurry(self, saves: KvSaves) -> None:
        """What they lack is saved first."""
        for export in reversed(self._saving.values()):
            saves.hurry(export.hashes[export.num_saved :])

    def advance(self, saves: KvSaves, now: float) -> list[Export]:
        """Ask for tickets where all blocks are saved that can be. Returns those for which there is none to be had."""
        hopeless: list[Export] = []
        for export in list(self._saving.values()):
            if export.deadline == math.inf:
                export.deadline = now + self._seconds + GRACE_SECONDS
            hashes = export.hashes
            while export.num_saved < len(hashes) and saves.has(hashes[export.num_saved]):
                export.num_saved += 1
            if export.num_saved < len(hashes) and saves.is_coming(hashes[export.num_saved]):
                continue
            if export.num_saved == 0:
                self.drop(export.sequence)
                hopeless.append(export)
                continue
            del self._saving[export.sequence]
            self._num_asked += 1
            export.number = ExportId(self._num_asked)
            self._asked[export.number] = export
            self._say(KvExport(self._epoch, export.number, hashes[: export.num_saved]))
        return hopeless

    def hear(self, exported: KvExported, saves: KvSaves) -> Export | None:
        """The export that is over with it; None if nobody waits for it any more, or if it goes on: the connector may
        have given up blocks that the pool still has. They are saved once more then."""
        export = self._asked.get(exported.export_id)
        if export is None:
            self.give_back(exported.ticket)
            return None
        self.give_back(export.ticket)  # which promised less
        export.ticket = exported.ticket
        missing = export.hashes[exported.num_blocks : export.num_saved]
        if not missing or export.is_second:
            return self.drop(export.sequence)
        saves.unlearn(missing)
        if not saves.is_coming(missing[0]):
            return self.drop(export.sequence)
        del self._asked[exported.export_id]
        export.number, export.num_saved, export.is_second = None, exported.num_blocks, True
        self._saving[export.sequence] = export
        return None

    def passed(self, now: float) -> list[Export]:
        """Those that wait no longer."""
        late: list[Export] = []
        for export in self._of.values():
            if export.deadline > now:
                break
            late.append(export)
        for export in late:
            self.drop(export.sequence)
        return late

    def drop(self, sequence: Sequence) -> Export | None:
        """It does not wait any longer. None: it never did."""
        export = self._of.pop(sequence, None)
        if export is not None:
            self._saving.pop(sequence, None)
            if export.number is not None:
                del self._asked[export.number]
        return export

    def give_back(self, ticket: bytes) -> None:
        """Nobody will bring it: its blocks need not be kept until its time is over."""
        if ticket:
            self._say(KvDecline(self._epoch, ticket))

    def drop_all(self) -> list[Export]:
        exports = list(self._of.values())
        self._of.clear()
        self._saving.clear()
        self._asked.clear()
        return exports

    def __repr__(self) -> str:
        return f"<KvExports {len(self._saving)} saving, {len(self._asked)} asked for>"
