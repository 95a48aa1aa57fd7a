"""One server behind the proxy: how much it has to do, and whether it has failed lately. Pure."""

from __future__ import annotations

import math

from attrs import define

from app.proxy.address import UpstreamAddress

REST_SECONDS = 5.0
"""After a failure; twice that after the next one, and so on."""
MOST_REST_SECONDS = 60.0
SECONDS_BETWEEN_WARNINGS = 60.0
"""Of what each request meets with, as long as the server is not set up otherwise."""
BUSY_SECONDS = 1.0
"""Who has answered that it has too much to do is not asked for so long, if others can be."""


@define(eq=False)
class Upstream:
    """In one role: a server that is named for both is two of these."""

    role: str
    """prefill or decode."""
    address: UpstreamAddress
    num_in_flight: int = 0
    num_failures: int = 0
    """In a row."""
    rests_until: float = -math.inf
    """By the caller's clock."""
    last_turn: int = 0
    """When it was chosen last, as a count of choices."""
    warned_at: float = -math.inf
    on_trial: Turn | None = None
    """The one request that finds out whether it is well again."""

    def is_available(self, now: float) -> bool:
        return now >= self.rests_until and self.on_trial is None

    def begin(self) -> Turn:
        """A request is going to it. To be ended, whatever becomes of it."""
        self.num_in_flight += 1
        turn = Turn(self)
        if self.num_failures and self.on_trial is None:
            self.on_trial = turn
        return turn

    def is_well(self) -> bool:
        """It has answered. Whether it had failed before."""
        had_failed = self.num_failures > 0
        self.num_failures = 0
        self.rests_until = -math.inf
        self.on_trial = None
        return had_failed

    def is_busy(self, now: float) -> bool:
        """It lives, and has turned a request away. Whether it had failed before."""
        had_failed = self.is_well()
        self.rests_until = now + BUSY_SECONDS
        return had_failed

    def is_warned_of(self, now: float) -> bool:
        """Whether it was already, lately. If not, it is now."""
        if now < self.warned_at + SECONDS_BETWEEN_WARNINGS:
            return True
        self.warned_at = now
        return False

    def has_failed(self, now: float) -> float:
        """For how many seconds it rests now. Requests that fail together are one failure."""
        if now >= self.rests_until:
            seconds = min(REST_SECONDS * 2.0 ** min(self.num_failures, 16), MOST_REST_SECONDS)
            self.num_failures += 1
            self.rests_until = now + seconds
            self.on_trial = None
            return seconds
        self.num_failures = max(self.num_failures, 1)
        return self.rests_until - now


@define(eq=False)
class Turn:
    """One request at one server, from before it is sent until its answer is over."""

    upstream: Upstream

    def end(self) -> None:
        self.upstream.num_in_flight -= 1
        if self.upstream.on_trial is self:
            self.upstream.on_trial = None  # nobody knows: its client has left
