"""What the tests of runners in this process do without."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_full_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that goes to sleep looks through all objects of its process for garbage. Here these are the whole
    suite's, which takes 0.6 s a hundred times. tests/end_to_end/test_operations.py measures what it gives back."""
    monkeypatch.setattr("gpu.torch_runner.give_back_freed_memory", lambda: None)
