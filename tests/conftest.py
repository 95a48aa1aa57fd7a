"""What every test may use."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from hypothesis import settings

from tests.helpers.dummy_checkpoint import write_dummy_checkpoint

# Timings decide no test.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory for the dummy runner."""
    return write_dummy_checkpoint(tmp_path_factory.mktemp("checkpoint"))


REAL_SECONDS = 120
"""What a test with real processes or sockets may take before it counts as hung."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("process") and inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.obj = bounded(item.obj)


def bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The test under a deadline. A scope in a fixture would not do: pytest-trio runs fixtures in their own tasks."""

    @functools.wraps(test)
    async def within_deadline(*args: object, **kwargs: object) -> None:
        with trio.fail_after(REAL_SECONDS):
            await test(*args, **kwargs)

    return within_deadline
