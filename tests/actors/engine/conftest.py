"""The checkpoint that the scheduler's tests run their dummy runner on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.scheduling import write_tiny_config


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_config(tmp_path_factory.mktemp("tiny"))
