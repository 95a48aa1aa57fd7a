"""Hands requests to engines and takes them back: of what is decided by app/routing.py and app/replays.py, the doing.

Used by app/engine_client.py. Synchronous: there is no moment at which a request is half sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import final

from actors.handles import House
from app.api_identity import ALONE, ApiIdentity
from app.engines import Engines
from app.journal import Entry
from app.late_actors import serves
from app.other_loads import loads_of_others
from app.replays import Replays
from app.roles import Roles
from app.routing import Placement, Router
from protocol.ids import EngineIndex, Epoch, RequestId
from protocol.messages import AbortRequest


@final
class Dispatch:
    """Of one engine client. Sends nothing before it has a house, since no engine is attached before that."""

    def __init__(
        self,
        engines: Engines,
        router: Router,
        replays: Replays,
        identity: ApiIdentity = ALONE,
        roles: Roles | None = None,
    ) -> None:
        self._identity = identity
        self._roles = roles or Roles()
        self._engines = engines
        self._router = router
        self._replays = replays
        self._house: House | None = None

    def use(self, house: House) -> None:
        self._house = house

    @property
    def _actors(self) -> House:
        assert self._house is not None, "an engine is attached only once there is a house"
        return self._house

    def send(self, entries: Iterable[Entry]) -> bool:
        """Hand new requests to engines, choices of one prompt to the same. Whether all could be handed to one: what is
        left over waits for the next engine that is up."""
        return self._send(entries, self._replays.away_from_trials(self._trusted()), self._serving())

    def go_on(self) -> None:
        """Hand what waits for an engine to those that are up."""
        if self._engines.attached:
            serving = self._serving()
            for due in self._replays.take_due(self._trusted(), serving):
                self._send(due.entries, due.among, serving)

    def _trusted(self) -> list[EngineIndex]:
        """The engines to give requests to: those that serve, or for want of them those that may again."""
        if not self._engines.attached:
            return []
        return self._engines.serving(self._actors.states()) or list(self._engines.attached)

    def _send(self, entries: Iterable[Entry], among: Collection[EngineIndex], serving: Collection[EngineIndex]) -> bool:
        """Hand them to some of these engines. Whether all could be handed to one: an engine that has just gone down
        leaves them to the others, and what is left over waits for the next one that is up."""
        loads = self._loads(among)
        are_sent = True
        for group, engines in self._roles.divide(entries, among):
            rest = [index for index in among if index not in engines]
            placements = [Placement(self._router, loads, each) for each in (engines, rest)]
            for entry in group:
                are_sent = any(self._place(entry, placement, serving) for placement in placements) and are_sent
        return are_sent

    def _place(self, entry: Entry, placement: Placement, serving: Collection[EngineIndex]) -> bool:
        while place := placement.place(entry.prompt):
            index, num_cached = place
            if self._send_to(entry, index, num_cached, serving):
                placement.count(index, entry.load)
                return True
            placement.drop(index)
        return False

    def _serving(self) -> Collection[EngineIndex]:
        """The engines that a request may go on in after its first token: also those that serve and are not heard yet,
        as after the output handler's death. Of no concern where each does everything."""
        if self._roles.num_prefill == 0 or not self._engines.attached:
            return ()
        states = self._actors.states()
        up = {state.engine_index for state in states if state.engine_index is not None and serves(state)}
        return up or self._engines.attached

    def _loads(self, among: Collection[EngineIndex]) -> Counter[EngineIndex]:
        """What these have to do, in tokens. Nothing, if there is one only: nothing is chosen by it, and with a full
        queue it takes a millisecond."""
        if len(among) < 2:
            return Counter()
        loads = self._replays.loads()
        if self._identity.has_peers:
            loads += loads_of_others(self._replays.sequences_of_others(self._engines.latest()))
        return loads

    def _send_to(self, entry: Entry, index: EngineIndex, num_cached: int, serving: Collection[EngineIndex]) -> bool:
        epoch = self._engines.attached[index]
        kv, was_moving = self._roles.kv_params(entry, index, serving), entry.is_moving
        request = entry.request(epoch, kv)
        if was_moving and entry.kv_ticket:
            num_cached = len(entry.prompt.prompt_token_ids)  # which comes with the ticket
        entry.send_to((index, epoch), num_cached, hands_over=kv is not None and kv.hands_over)
        # The output handler first: it should know the request before the engine's first token comes.
        if self._actors.send_to_output(request) and self._actors.send_to_engine(index, request):
            return True
        entry.engine, entry.is_moving = None, was_moving
        return False

    def withdraw(self, entries: list[Entry]) -> None:
        """Tell the actors to drop these, wherever they run."""
        by_engine: dict[tuple[EngineIndex, Epoch], list[RequestId]] = {}
        for entry in entries:
            if entry.engine is not None:
                by_engine.setdefault(entry.engine, []).append(entry.request_id)
                entry.engine = None
        for (index, epoch), ids in by_engine.items():
            abort = AbortRequest(epoch, self._identity.client, ids)
            self._actors.send_to_engine(index, abort)
            self._actors.send_to_output(abort)
