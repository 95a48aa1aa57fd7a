"""A grammar checker in the test's own process, for the dummy tokeniser."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from actors.grammar.checker import GrammarChecker
from protocol.sampling import GrammarSource
from tests.helpers.dummy_checkpoint import write_dummy_checkpoint


@functools.cache
def checker() -> GrammarChecker:
    """Its tokeniser is read by the first check."""
    with tempfile.TemporaryDirectory() as directory:
        found = GrammarChecker(str(write_dummy_checkpoint(Path(directory))))
        found.check(GrammarSource("regex", "a"))
    return found
