"""How much of responses is kept, and how much is: what app/responses/archive.py asks its file about all of them."""

from __future__ import annotations

import sqlite3

from attrs import frozen

MAX_APPROVALS = 2**20
"""Used ones that are remembered; the oldest are forgotten first."""
_MAX_INTEGER = 2**63 - 1
"""SQLite's."""
_PUTS = 64


@frozen
class Bounds:
    """How much is kept. The least recently used go first; what is under way never goes."""

    max_responses: int = 10_000
    seconds: float = 30 * 86400.0
    """Since a response has ended, or was last gone on from."""
    max_bytes: int = 4 * 2**30

    @property
    def num_puts(self) -> int:
        """After so many it is looked whether there are more: which costs the more the more there are, and matters the
        less."""
        return min(_PUTS, max(1, self.max_responses // 16))


@frozen
class Totals:
    """What a file has, by whichever server it was put there."""

    num_responses: int = 0
    num_bytes: int = 0
    """Responses, inputs and events, as JSON."""
    oldest_used_at: float | None = None
    """Unix time in seconds, of the least recently used one. None without any."""


def totals(connection: sqlite3.Connection) -> Totals:
    """Reads no response: SQLite knows the length of a blob without it. Raises sqlite3.Error."""
    [found] = connection.execute(
        "SELECT count(*), coalesce(sum(length(response) + length(input_items) + event_bytes), 0), min(used_at)"
        " FROM responses"
    ).fetchall()
    return Totals(*found)


def sweep(connection: sqlite3.Connection, bounds: Bounds, now: float) -> None:
    """Deletes what is beyond the bounds, in its caller's transaction. `now`: Unix time. Raises sqlite3.Error."""
    connection.execute("DELETE FROM responses WHERE owner IS NULL AND used_at < ?", (now - bounds.seconds,))
    connection.execute(
        "DELETE FROM responses WHERE owner IS NULL AND id IN (SELECT id FROM (SELECT id,"
        " row_number() OVER newest AS place,"
        " sum(length(response) + length(input_items) + event_bytes) OVER newest AS size"
        " FROM responses WINDOW newest AS (ORDER BY used_at DESC, id ROWS UNBOUNDED PRECEDING))"
        " WHERE place > ? OR size > ?)",
        (min(bounds.max_responses, _MAX_INTEGER), bounds.max_bytes),
    )
    connection.execute(
        "DELETE FROM used_approvals WHERE number <= (SELECT max(number) FROM used_approvals) - ?", (MAX_APPROVALS,)
    )
