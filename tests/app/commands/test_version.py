"""`trillm version` is short, and --all is what a report of a mistake needs."""

from __future__ import annotations

from importlib.metadata import version

from app.commands.version import packages
from tests.helpers.command_line import say


def test_alone_it_is_one_line(capsys):
    assert say(capsys, "version").out == f"trillm {version('trillm')}\n"
    assert say(capsys, "--version").out == f"trillm {version('trillm')}\n"


def test_with_all_it_names_what_it_stands_on(capsys):
    told = say(capsys, "version", "--all").out
    for package in ("torch", "trio", "pyzmq", "hypercorn", "msgspec"):
        assert f"\n{package} {version(package)}\n" in told + "\n"
    assert told.splitlines()[1].startswith("Python 3.")
    assert "pytest" not in told


def test_packages_are_named_once_and_without_those_of_tests():
    required = ["a>=1", "b-c==2.*; sys_platform == 'linux'", 'd>=1; extra == "otel"', 'e; extra == "test"', "a"]
    assert packages(required) == ["a", "b-c", "d"]
