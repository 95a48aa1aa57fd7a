"""What the store keeps of a response: JSON as it is told, and what it is found and judged by.

Made by app/responses/store.py and the routes, kept by app/responses/archive.py.
"""

from __future__ import annotations

import msgspec
from attrs import evolve, frozen

UNDER_WAY = ("queued", "in_progress")
"""Every other status is an end."""

SERVER_DIED = "The server stopped before this response was complete"

_ANY = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder()


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

    def failed(self, events: list[bytes], message: str) -> StoredResponse:
        """Ended by what befell its server. `events`: those that were kept; the items they finish are its output."""
        body = _ANY.decode(self.response)
        told = [_ANY.decode(event) for event in events]
        body["output"] = [event["item"] for event in told if event["type"] == "response.output_item.done"]
        body["status"] = "failed"
        body["error"] = {"code": "server_error", "message": message}
        return evolve(self, status="failed", response=_ENCODER.encode(body))


def failed_event(response: bytes, sequence_number: int) -> bytes:
    """The last event of a response that failed, as JSON."""
    told = {"type": "response.failed", "sequence_number": sequence_number, "response": msgspec.Raw(response)}
    return _ENCODER.encode(told)
