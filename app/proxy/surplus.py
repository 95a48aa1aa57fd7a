"""What a server sends after its answer's end, as to a HEAD with a body. httpcore2 would keep the connection, and take
what it has read of that for the beginning of the next answer, which is somebody else's. Used by
app/proxy/upstream_client.py.
"""

from __future__ import annotations

from typing import Any

import h11
import httpcore2


def give_up_if_more_came(response: httpcore2.Response) -> None:
    """The connection is closed with the answer then, which was read to its end."""
    stream: Any = response.stream
    parser: h11.Connection = stream._stream._connection._h11_state  # nothing public tells of it
    surplus, _ = parser.trailing_data
    if surplus:
        parser.send_failed()
