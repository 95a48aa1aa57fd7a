"""What makes a runner's own collection of garbage cheap here, as it is in an engine's process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def suite_is_no_garbage() -> Iterator[None]:
    """A runner that goes to sleep looks through all objects of its process. Here these are the whole suite's, nearly a
    million; what is there before a file's tests is set aside, so that only theirs are looked through."""
    gc.freeze()
    yield
    gc.unfreeze()
