"""An ASGI application behind a real hypercorn on a free loopback port, in the test's own process."""

from __future__ import annotations

from functools import partial
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve


async def serve_on_loopback(app: Any, nursery: trio.Nursery, **settings: Any) -> int:
    """The port. Serves until the nursery is cancelled; keyword arguments are hypercorn's settings."""
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.accesslog = config.errorlog = None
    for name, value in settings.items():
        setattr(config, name, value)
    urls = await nursery.start(partial(serve, app, config, shutdown_trigger=trio.sleep_forever))
    return int(urls[0].rpartition(":")[2])
