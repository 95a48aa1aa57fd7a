"""The browser of a module of tests: only those start it that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from tests.helpers.browser import open_browser  # it skips where playwright is missing

    with open_browser() as opened:
        yield opened
