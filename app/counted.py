"""Numbers of things, as people write them. For lines of the log and of terminals; pure."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """As "1 request" and "0 requests", of a thing whose plural has an s."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
