"""Connections whose request is given up at the very moment they are there. httpcore2 would keep them for ever, since
nothing was asked on them: they are neither idle nor closed. Used by app/proxy/upstream_client.py.
"""

from __future__ import annotations

from typing import Any

import trio

OPENED = ("connection.connect_tcp.complete", "connection.start_tls.complete")


async def close_if_nobody_waits(event: str, info: dict[str, Any]) -> None:
    """httpcore2's `trace`, told of each thing that it does. From here until it marks the connection as in use no other
    task runs, so that nothing can be given up between."""
    if event not in OPENED:
        return
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        await info["return_value"].aclose()
        raise
