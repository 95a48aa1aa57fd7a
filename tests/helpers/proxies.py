"""A real `trillm proxy` in front of real servers."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from tests.helpers.server import LISTENING, Server, open_process


@asynccontextmanager
async def open_proxy(
    prefill: Iterable[Server], decode: Iterable[Server], *flags: str, **environment: str
) -> AsyncIterator[Server]:
    """On a free loopback port."""
    command = [sys.executable, "-m", "app.cli", "proxy", "--port", "0", "--prefill", *(one.url for one in prefill)]
    async with open_process([*command, "--decode", *(one.url for one in decode), *flags], **environment) as proxy:
        proxy.url = (await proxy.until_said(LISTENING))[1]
        yield proxy
