"""`trillm`'s command line in this process, for tests of what it says."""

from __future__ import annotations

import attrs
import pytest

from app import cli


@attrs.frozen
class Said:
    status: int
    out: str
    err: str


def say(capsys: pytest.CaptureFixture[str], *words: str) -> Said:
    """What the command line does with these words. Only for such as end at once."""
    status = cli.run(words)
    captured = capsys.readouterr()
    return Said(status, captured.out, captured.err)
