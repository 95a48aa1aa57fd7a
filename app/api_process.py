"""One of several API servers, as a process: `python -m app.api_process NAME PARENT_PID LOG_LEVEL LOG_STYLE`, which the
supervisor starts.

Light, so that it is heard of at once: what serves (app/api_server.py) is imported in a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from actors.handles import ApiHouse, run_api_process
from protocol.spec import ApiSpec

Begin = Callable[[], Awaitable[None]]
Serve = Callable[[ApiSpec, ApiHouse, Begin], Awaitable[None]]


async def serve_api(spec: ApiSpec, house: ApiHouse, begin: Begin) -> None:
    """Until it is told to stop."""
    serve = await trio.to_thread.run_sync(load)
    await serve(spec, house, begin)


def load() -> Serve:
    from app.api_server import serve

    return serve


if __name__ == "__main__":
    run_api_process(serve_api)
