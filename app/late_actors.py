"""Which actors no request is to be taken because of, and what they do meanwhile. Used by app/engine_client.py, for
/ready and for the refusals of requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from actors.handles import ActorState

LATE_SECONDS = 5.0
"""Without a heartbeat, from when on an actor is not trusted with new requests. (The supervisor ends it after 10 s.)"""


def describe(state: ActorState) -> str:
    """What an actor that is not ready is doing, for /ready."""
    times = "once" if state.restarts == 1 else f"{state.restarts} times"
    again = f", restarted {times}" if state.restarts else ""
    if state.ready:
        return f"{state.name} has not been heard of for {state.heartbeat_age:.0f} s{again}"
    progress = f" ({state.progress:.0%})" if 0.0 < state.progress < 1.0 else ""
    last = f"; before that it was {state.last_end}" if state.last_end else ""
    return f"{state.name}: {state.phase}{progress}{again}{last}"


def is_late(state: ActorState) -> bool:
    """Whether no request is to be taken because of this actor."""
    return state.is_needed and (not state.ready or state.heartbeat_age > LATE_SECONDS)


def serves(state: ActorState) -> bool:
    """Whether it is an engine that may be trusted with new requests."""
    return state.engine_index is not None and not is_late(state)


def what_is_late(states: Sequence[ActorState]) -> str | None:
    """Why no request is to be taken, in words; None if one may be. Of several engines one is enough."""
    ignored = any(map(serves, states))
    late = (state for state in states if is_late(state) and not (ignored and state.engine_index is not None))
    return "; ".join(map(describe, late)) or None


def late_engines(states: Iterable[ActorState]) -> str:
    """Those that do not serve, in words."""
    return "; ".join(describe(state) for state in states if state.engine_index is not None and is_late(state))
