"""A request's priority, whichever route it comes by: its bounds, for the check and for the API's description."""

from __future__ import annotations

from app.checks import ranged

MIN_PRIORITY = -(2**31)
MAX_PRIORITY = 2**31 - 1


def checked_priority(priority: int | None) -> int:
    """0 if there is none; lower is served earlier. Raises BadRequestError."""
    return ranged("priority", priority, MIN_PRIORITY, MAX_PRIORITY, 0)
