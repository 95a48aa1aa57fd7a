"""Which style of log suits who reads it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
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


REFUSES = """
import sys
from app.commands.ending import refuse
from app.logs import set_up_logging
set_up_logging("info", "FORMAT")
sys.exit(refuse("it is not there"))
"""

CRASHES = """
from app.logs import set_up_logging
set_up_logging("info", "json")
import warnings; warnings.warn("an old way")
raise ValueError("in two\\nlines")
"""


@pytest.mark.parametrize(
    ("log_format", "end"),
    [("text", "trillm: it is not there"), ("json", '"level": "critical", "logger": "trillm", "message": "it is not ')],
)
def test_why_a_start_has_failed_is_told_as_whoever_reads_the_log_expects(log_format: str, end: str) -> None:
    program = REFUSES.replace("FORMAT", log_format)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=20)

    assert ended.returncode == 1
    assert end in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_what_nobody_has_caught_is_a_line_of_the_log_too() -> None:
    ended = subprocess.run([sys.executable, "-c", CRASHES], capture_output=True, text=True, check=False, timeout=20)
    warned, crashed = (json.loads(line) for line in ended.stderr.splitlines())

    assert ended.returncode == 1
    assert "an old way" in warned["message"]
    assert (crashed["level"], crashed["message"]) == ("critical", "this process cannot go on")
    assert crashed["traceback"].endswith("ValueError: in two\nlines")
