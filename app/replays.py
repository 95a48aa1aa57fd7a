"""Which requests go on in another engine after theirs is gone, when, and which have seen too many engines die.

Pure: app/engine_client.py owns the journal, and sends and ends what is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import final

from attrs import frozen

from app.incidents import Incidents
from app.journal import MAX_DEATHS, TRIAL_DEATHS, Entry, incarnation_name
from app.other_loads import sequences_of_others
from app.roles import Roles
from protocol.engine_stats import EngineStats
from protocol.ids import EngineIndex, Epoch, RequestId


@frozen
class Due:
    """What is to be sent now, and to which engines."""

    entries: list[Entry]
    among: list[EngineIndex]


@final
class Replays:
    """Of one engine client; `live` is its journal."""

    def __init__(self, live: Mapping[RequestId, Entry], incidents: Incidents, roles: Roles | None = None) -> None:
        self._live = live
        self._incidents = incidents
        self._roles = roles or Roles()

    @property
    def num_waiting(self) -> int:
        """Requests that no engine has."""
        return sum(entry.engine is None for entry in self._live.values())

    def loads(self) -> Counter[EngineIndex]:
        """What each engine has still to compute, in tokens. Takes a while with many: once per call, not per choice."""
        loads: Counter[EngineIndex] = Counter()
        for entry in self._live.values():
            if entry.engine is not None:
                loads[entry.engine[0]] += entry.load
        return loads

    def sequences_of_others(self, stats_of_each: Mapping[EngineIndex, EngineStats]) -> Counter[EngineIndex]:
        """Of other API servers, in each engine."""
        return sequences_of_others(self._live.values(), stats_of_each)

    def away_from_trials(self, among: Collection[EngineIndex]) -> Collection[EngineIndex]:
        """Those of these engines in which nothing is on trial; all of them if there are none."""
        return among if len(among) < 2 else self._not_on_trial(among) or among

    def _not_on_trial(self, among: Collection[EngineIndex]) -> list[EngineIndex]:
        tried = {entry.engine[0] for entry in self._live.values() if entry.engine is not None and entry.is_on_trial}
        return [index for index in among if index not in tried]

    def take_due(self, among: Collection[EngineIndex], serving: Collection[EngineIndex] = ()) -> list[Due]:
        """Those to be handed to engines that serve, which are `among`, now; `serving`: with those that are not heard
        yet. Of those that may be the cause of deaths one at a time, in an engine that gets nothing else until it has
        its first token: it is over soon, and a death from elsewhere hardly falls into it."""
        idle = (entry for entry in self._live.values() if entry.engine is None and entry.home is None)
        waiting = [entry for entry in idle if not self._roles.waits(entry, among, serving)]
        suspects = [entry for entry in waiting if entry.is_on_trial]
        rest = self._not_on_trial(among)
        due: list[Due] = []
        if suspects and len(rest) == len(among):
            counts = Counter(entry.engine[0] for entry in self._live.values() if entry.engine is not None)
            ((_, docks),) = self._roles.divide(suspects[:1], rest)
            dock = min(docks, key=lambda index: counts[index])
            rest.remove(dock)
            due.append(Due(suspects[:1], [dock]))
        if rest and (others := [entry for entry in waiting if not entry.is_on_trial]):
            due.append(Due(others, rest))
        self._incidents.replays += sum(not entry.is_moving for each in due for entry in each.entries)
        return due

    def send_home(self, lost: str) -> None:
        """Nobody hears the engines, though they are up, since this actor is gone: what runs there waits until they are
        heard again."""
        for entry in self._live.values():
            if entry.engine is not None:
                entry.home = entry.engine[0]
                entry.lose(lost)

    def come_home(self, index: EngineIndex) -> None:
        """This engine is heard again, or gone: who waited for it waits no more."""
        for entry in self._live.values():
            if entry.home == index:
                entry.home = None

    def lose(self, engine: tuple[EngineIndex, Epoch], *, is_innocent: bool) -> list[Entry]:
        """It is gone, and its requests wait for another one. Returns those that do not: MAX_DEATHS engines in a row
        have died under them. They are innocent of the death of an engine that somebody killed, and of one that was held
        and computed none of them."""
        self.come_home(engine[0])
        condemned: list[Entry] = []
        for entry in self._live.values():
            if entry.engine != engine:
                continue
            entry.engine = None
            entry.lose(incarnation_name(*engine))
            if is_innocent:
                continue
            entry.deaths += 1
            self._incidents.quarantined += entry.deaths == TRIAL_DEATHS
            if entry.deaths >= MAX_DEATHS:
                self._incidents.condemned += 1
                condemned.append(entry)
        return condemned
