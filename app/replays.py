"""Which requests go on in another engine after theirs is gone, when, and which have seen too many engines die.

Pure: app/engine_client.py owns the journal, and sends and ends what is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import final

from app.incidents import Incidents
from app.journal import MAX_DEATHS, TRIAL_DEATHS, Entry
from protocol.ids import EngineIndex, Epoch, RequestId


@final
class Replays:
    """Of one engine client; `live` is its journal."""

    def __init__(self, live: Mapping[RequestId, Entry], incidents: Incidents) -> None:
        self._live = live
        self._incidents = incidents

    @property
    def num_waiting(self) -> int:
        """Requests that no engine has."""
        return sum(entry.engine is None for entry in self._live.values())

    def loads(self) -> Counter[EngineIndex]:
        """How many requests each engine has. Takes a while with many: once per call, not per choice."""
        return Counter(entry.engine[0] for entry in self._live.values() if entry.engine is not None)

    def take_due(self) -> list[Entry]:
        """Those to be handed to an engine that is up, now. Of those that may be the cause of deaths one at a time, and
        until it has its first token nothing else: it is over soon, and a death from elsewhere hardly falls into it."""
        if any(entry.is_on_trial for entry in self._live.values() if entry.engine is not None):
            return []
        waiting = [entry for entry in self._live.values() if entry.engine is None]
        suspects = [entry for entry in waiting if entry.is_on_trial]
        due = suspects[:1] or waiting
        self._incidents.replays += len(due)
        return due

    def lose(self, engine: tuple[EngineIndex, Epoch], *, is_innocent: bool) -> list[Entry]:
        """It is gone, and its requests wait for the next one. Returns those that do not: MAX_DEATHS engines in a row
        have died under them. They are innocent of the death of an engine that somebody killed, and of one that was held
        and computed none of them."""
        condemned: list[Entry] = []
        for entry in self._live.values():
            if entry.engine != engine:
                continue
            entry.engine = None
            if is_innocent:
                continue
            entry.deaths += 1
            self._incidents.quarantined += entry.deaths == TRIAL_DEATHS
            if entry.deaths >= MAX_DEATHS:
                self._incidents.condemned += 1
                condemned.append(entry)
        return condemned
