"""Which style of log suits who reads it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from app.logs import LogFormat, pick_style
from protocol.log_lines import LogStyle

JSON, TEXT, SHORT, COLOUR, JOURNAL = (
    *(LogStyle.JSON, LogStyle.TEXT, LogStyle.SHORT),
    *(LogStyle.COLOUR, LogStyle.JOURNAL),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("log_format", "environment", "style"),
    [
        ("auto", {"TERM": "xterm"}, COLOUR),
        ("auto", {"TERM": "xterm", "NO_COLOR": "1"}, SHORT),
        ("auto", {"TERM": "xterm", "NO_COLOR": ""}, COLOUR),
        ("auto", {"TERM": "dumb"}, SHORT),
        ("auto", {}, SHORT),
        ("text", {"TERM": "xterm"}, TEXT),
        ("json", {"TERM": "xterm"}, JSON),
    ],
)
def test_on_a_terminal(log_format: LogFormat, environment: dict[str, str], style: LogStyle) -> None:
    assert pick_style(log_format, Terminal(), environment) is style


def test_into_a_file_or_a_pipe(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        assert pick_style("auto", log, {"TERM": "xterm"}) is TEXT
        assert pick_style("json", log, {}) is JSON


def test_journald_is_where_it_says_it_listens_and_nowhere_else(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, (tmp_path / "other").open("w") as other:
        status = os.fstat(log.fileno())
        environment = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert pick_style("auto", log, environment) is JOURNAL
        assert pick_style("auto", other, environment) is TEXT
        assert pick_style("text", log, environment) is TEXT
        assert pick_style("json", log, environment) is JSON
    assert pick_style("auto", io.StringIO(), {"JOURNAL_STREAM": "1:2"}) is TEXT
