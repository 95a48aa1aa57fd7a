"""Which of the servers of one role is asked next: the one with the fewest requests. Pure; used by
app/proxy/forwarding.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import final

from app.proxy.address import UpstreamAddress
from app.proxy.upstream import Upstream


@final
class Upstreams:
    """All of one role: "prefill" or "decode"."""

    def __init__(self, role: str, addresses: Iterable[UpstreamAddress]) -> None:
        self.role = role
        self._all = [Upstream(role, address) for address in addresses]
        self._num_turns = 0

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._all)

    def choose(self, now: float, tried: Collection[Upstream] = (), *, also_resting: bool = False) -> Upstream | None:
        """The next to be asked of those that were not `tried`. Of several with equally few requests it is the one that
        has waited longest. None: there is no other, or (unless `also_resting`) all others rest."""
        others = [one for one in self._all if one not in tried]
        found = [one for one in others if one.is_available(now)]
        if found:
            chosen = min(found, key=lambda one: (one.num_in_flight, one.last_turn))
        elif others and also_resting:
            chosen = min(others, key=lambda one: (one.rests_until, one.num_in_flight, one.last_turn))
        else:
            return None
        self._num_turns += 1
        chosen.last_turn = self._num_turns
        return chosen
