"""What the store keeps of a response: JSON as it is told, and what it is found and judged by.

Made by app/responses/store.py and the routes, kept by app/responses/archive.py.
"""

from __future__ import annotations

from attrs import frozen

UNDER_WAY = ("queued", "in_progress")
"""Every other status is an end."""


@frozen
class StoredResponse:
    """One row."""

    id: str
    status: str
    response: bytes
    """The response object, as JSON."""
    input_items: bytes
    """Those that came with its request, as a JSON array; what went before them is `previous_id`'s."""
    previous_id: str | None = None
    is_background: bool = False
    """Its events are kept as well."""

    @property
    def is_under_way(self) -> bool:
        return self.status in UNDER_WAY
