"""Somebody else's code in a test: in a thread of its own, and what it left behind is collected before the test ends."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")

SECONDS = 30
"""For one answer. The deadline of a test does not reach a thread, so that each client has to give up by itself."""


async def run_client(code: Callable[[], T]) -> T:
    """What it returns. Its unclosed sockets and loops are told as warnings, which the test has to ignore."""
    try:
        return await trio.to_thread.run_sync(code)
    finally:
        gc.collect()
