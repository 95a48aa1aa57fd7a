"""What every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.dummy_checkpoint import write_dummy_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory for the dummy runner."""
    return write_dummy_checkpoint(tmp_path_factory.mktemp("checkpoint"))
