"""How actors are, on its way from the supervisor to API servers and back into what the app reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import msgspec

from actors.handles import ActorState
from protocol.api import ActorsAre, ActorStanding


def told(states: Iterable[ActorState]) -> ActorsAre:
    return ActorsAre([ActorStanding(**attrs.asdict(state)) for state in states])


def heard(message: ActorsAre, seconds: float, needed: str) -> list[ActorState]:
    """As they are so many seconds after that was told. `needed`: the one that this API server needs beside what all of
    them need."""
    states = []
    for standing in message.actors:
        fields = msgspec.structs.asdict(standing)
        fields["heartbeat_age"] += seconds if standing.pid is not None else 0.0
        fields["is_needed"] |= standing.name == needed
        states.append(ActorState(**fields))
    return states
