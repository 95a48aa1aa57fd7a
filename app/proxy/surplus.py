"""What a server sends after its answer's end, as to a HEAD with a body. httpcore2 would keep the connection with what it
has read of that, and take it for the beginning of the next answer, which is somebody else's. Used by
app/proxy/upstream_client.py.
"""

from __future__ import annotations

from typing import Any

import httpcore2
import trio


async def close_if_more_came(response: httpcore2.Response) -> None:
    """Its connection, so that nobody is given it. For an answer that was read to its end, and is not closed yet."""
    stream: Any = response.stream
    parser = stream._stream._connection._h11_state  # nothing public tells of it
    surplus, _ = parser.trailing_data
    if surplus:
        with trio.CancelScope(shield=True):  # it waits for nobody
            await response.extensions["network_stream"].aclose()
