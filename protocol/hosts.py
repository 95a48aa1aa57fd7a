"""What the hosts of one server say to each other: the one that leads, and those that only keep ranks of its engines.

Both say how everything is, again and again, and not what has changed: a message that is lost, or comes late after the
network was cut, needs nobody's care. The links are tcp with CURVE; protocol/links derives the keys from what the
operator gives to all hosts.
"""

from __future__ import annotations

import msgspec

from protocol.ids import Epoch
from protocol.spec import Heartbeat, RankSpec

BEAT_SECONDS = 1.0
"""Between two messages of one host, if nothing changes."""
SILENT_SECONDS = 10.0
"""Without a word from the leading host, after which another one ends its ranks: they are of no use without it."""


class RankReport(msgspec.Struct, frozen=True):
    """One rank, on the host that keeps it. It is told until the leading host wants it no more."""

    epoch: Epoch
    rank: int
    pid: int = 0
    """0 while there is no process."""
    heartbeat: Heartbeat | None = None
    heartbeat_age: float = 0.0
    """Seconds since it came."""
    is_ready: bool = False
    fault: str | None = None
    lost_rank: int | None = None
    end: str | None = None
    """How it has ended, in words for the operator; None while it lives."""
    ended_from_outside: bool = False


class HostReport(msgspec.Struct, frozen=True, tag="host_report"):
    """A host, and all its ranks."""

    version: int
    """protocol.messages.VERSION."""
    host: int
    """From 1; the leading host is 0."""
    num_hosts: int
    life: str
    """Of this process: another one on the same host has another."""
    address: str
    """Where it hears HostOrder."""
    model: str
    """Digest of the model's configuration."""
    leader: str
    """Life of the leading host that it obeys; empty for none yet."""
    ranks: list[RankReport]
    number: int = 0
    """Grows from one to the next of this life: one that comes late, over a connection of before the network was cut,
    is not heard."""


class RankOrder(msgspec.Struct, frozen=True):
    spec: RankSpec
    """In which paths and threads are the leading host's: those of the other host are its own affair."""
    num_stacks: int = 0
    """How often the rank has been asked where it is."""


class HostOrder(msgspec.Struct, frozen=True, tag="host_order"):
    """The ranks that a host is to keep, and no others. One that has ended is not started again."""

    leader: str
    """Life of the leading host: another one's epochs are others, whatever their numbers."""
    life: str
    """To whom this is said; nobody else obeys."""
    ranks: list[RankOrder]
    refusal: str | None = None
    """Why this host is not wanted, in a sentence for its operator."""
    number: int = 0
    """As that of reports."""
