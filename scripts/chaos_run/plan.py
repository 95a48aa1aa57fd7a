"""What is to be injected and when: pure, and the same for the same seed.

No actor may die more often than the service's own policy bears, or there is nothing left to be injured. An actor that
is stopped for long is killed by the supervisor, and counts as a death.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import attrs

WINDOW_SECONDS = 66.0
MAX_DEATHS = 3
"""In that window, of one actor: the fourth within 60 s ends the service."""
SURVIVED_SECONDS = 8.0
"""An actor that is stopped no longer than this is let live."""
KILLED_SECONDS = 13.0
"""When a stopped one has certainly been killed: no heartbeat for 10 s, looked at once a second."""

Deed = Literal["kill", "kill twice", "stop", "socket garbage", "http garbage", "resets"]


@attrs.frozen
class Kind:
    """One way to injure. Victims are actors by the beginning of their names; "server" is the server itself."""

    name: str
    deed: Deed
    victims: tuple[str, ...] = ()
    longest: float = 0.0
    """Seconds that a stop may take."""


KINDS = (
    Kind("kill -9 of the engine", "kill", ("engine",)),
    Kind("kill -9 of the output handler", "kill", ("output",)),
    Kind("kill -9 of a grammar checker", "kill", ("grammar",)),
    Kind("kill -9 of the weights actor", "kill", ("weights",)),
    Kind("kill -9 of engine and output handler at once", "kill", ("engine", "output")),
    Kind("kill -9 of engine and weights actor at once", "kill", ("engine", "weights")),
    Kind("kill -9 of the engine, and of the next while it starts", "kill twice", ("engine",)),
    Kind("kill -9 of the standby", "kill", ("standby",)),
    Kind("kill -9 of engine and standby at once", "kill", ("engine", "standby")),
    Kind("kill -9 of a KV connector", "kill", ("kv",)),
    Kind("kill -9 of engine and KV connector at once", "kill", ("engine", "kv")),
    Kind("SIGSTOP of the standby", "stop", ("standby",), 60.0),
    Kind("SIGSTOP of the engine", "stop", ("engine",), 60.0),
    Kind("SIGSTOP of the output handler", "stop", ("output",), 60.0),
    Kind("SIGSTOP of a grammar checker", "stop", ("grammar",), 60.0),
    Kind("SIGSTOP of the weights actor", "stop", ("weights",), 60.0),
    Kind("SIGSTOP of a KV connector", "stop", ("kv",), 60.0),
    Kind("SIGSTOP of the server", "stop", ("server",), 8.0),
    Kind("garbage to every socket", "socket garbage"),
    Kind("garbage as HTTP", "http garbage"),
    Kind("clients that reset", "resets"),
)


@attrs.frozen
class Injection:
    """One injury to come."""

    at: float
    """Seconds since the beginning."""
    kind: Kind
    seconds: float = 0.0
    """How long a stop takes."""

    def deaths(self) -> list[tuple[str, float]]:
        """Who will die of it, and when at the latest."""
        if self.kind.deed == "stop":
            lethal = self.seconds > SURVIVED_SECONDS and "server" not in self.kind.victims
            return [(victim, self.at + KILLED_SECONDS) for victim in self.kind.victims if lethal]
        times = 2 if self.kind.deed == "kill twice" else 1 if self.kind.deed == "kill" else 0
        return [(victim, self.at) for victim in self.kind.victims for _ in range(times)]

    def silence(self, restart_seconds: float) -> float:
        """How long a stream may be silent for it: until the hang is noticed, and the restarts."""
        held_up = min(self.seconds, KILLED_SECONDS) if self.kind.deed == "stop" else 0.0
        restarts = max((sum(v == victim for v, _ in self.deaths()) for victim in self.kind.victims), default=0)
        return held_up + restart_seconds * restarts


def plan(
    seed: int, seconds: float, rest_seconds: float, every: float = 4.0, kinds: Sequence[Kind] = KINDS
) -> list[Injection]:
    """Injections `every` so many seconds on average. After one, its victim has `rest_seconds` to come back."""
    chance = random.Random(f"plan {seed}")
    planned: list[Injection] = []
    deck: list[Kind] = []
    at = 0.5 + chance.uniform(0, every)
    while at < seconds - 1:
        if not deck:  # each kind has its turn before any has its next
            deck = chance.sample(kinds, len(kinds))
        fitting = [kind for kind in deck if may(planned, kind, at, rest_seconds)]
        if fitting:
            deck.remove(fitting[0])
            planned.append(Injection(at, fitting[0], stop_seconds(chance, fitting[0], seconds - at)))
        elif len(deck) < len(kinds):
            deck += [kind for kind in chance.sample(kinds, len(kinds)) if kind not in deck]
        at += chance.uniform(0.1, 1.9) * every
    return planned


def stop_seconds(chance: random.Random, kind: Kind, left: float) -> float:
    """Half of the stops are survived."""
    if kind.deed != "stop":
        return 0.0
    short = chance.uniform(1.0, SURVIVED_SECONDS - 1)
    drawn = short if kind.longest <= SURVIVED_SECONDS or chance.random() < 0.5 else chance.uniform(12.0, kind.longest)
    return min(drawn, left)


def may(planned: Sequence[Injection], kind: Kind, at: float, rest_seconds: float) -> bool:
    """Whether none of its victims is still to come back, or would die too often."""
    for victim in kind.victims:
        for earlier in planned:
            if victim in earlier.kind.victims and at < earlier.at + earlier.seconds + rest_seconds:
                return False
            if "server" in (*earlier.kind.victims, victim) and at < earlier.at + earlier.seconds + rest_seconds / 2:
                return False
        deaths = [when for earlier in planned for who, when in earlier.deaths() if who == victim]
        worst = 2 if kind.deed == "kill twice" else 1
        if sum(when > at - WINDOW_SECONDS for when in deaths) + worst > MAX_DEATHS:
            return False
    return True
