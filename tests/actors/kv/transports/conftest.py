"""What the transports' tests may use."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _without_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """UCX waits for 0.4 s where it hooks into mmap and its like, for devices that there are none of here. It does in
    tests/end_to_end/test_nixl.py."""
    monkeypatch.setenv("UCX_MEM_EVENTS", "n")
