"""What makes a runner's own collection of garbage cheap here, as it is in an engine's process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def suite_is_no_garbage() -> Iterator[None]:
    """A runner that goes to sleep looks through all objects of its process, also those that were set aside. Here these
    are the whole suite's, nearly a million; what is there before a file's tests stays aside, so that only theirs are
    looked through."""
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield
    gc.unfreeze()
