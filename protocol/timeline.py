"""When one request reached which point: told by the output handler, for the app's metrics (app/answer.py)."""

from __future__ import annotations

import msgspec


class Timeline(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Seconds of CLOCK_MONOTONIC (one host). As the engine saw it: a client that reads slowly does not show here."""

    arrived_at: float
    """When the app took it in; the same after its engine has died and another one goes on with it."""
    scheduled_at: float
    """When it was first given a place in a step."""
    first_token_at: float
    """When its first output was published; without any token that is its end."""
    last_at: float
    """When what it has now was published."""
    num_preemptions: int = 0
    """Times that it lost its blocks to others, by now and in this engine."""
    detokenising: float = 0.0
    """Seconds that the output handler has spent on its text by now, if the request wants to know (`is_traced`): of one
    that went on in another output handler, of the one that spent more."""


def then(earlier: Timeline | None, later: Timeline | None) -> Timeline | None:
    """The earlier one's beginning with the later one's end. The later one may be of an engine that went on with the
    request and knows no more of it."""
    if earlier is None or later is None:
        return earlier or later
    return Timeline(
        earlier.arrived_at,
        earlier.scheduled_at,
        earlier.first_token_at,
        max(earlier.last_at, later.last_at),
        max(earlier.num_preemptions, later.num_preemptions),
        max(earlier.detokenising, later.detokenising),
    )
