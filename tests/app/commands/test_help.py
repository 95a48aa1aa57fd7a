"""Help fits its screen, begins with what to do, shows examples, and names nothing that there is not."""

from __future__ import annotations

import re
import shlex

import pytest

from app import cli
from app.commands.flag_text import flag_texts
from app.commands.help_page import EVERYDAY, keyword
from app.commands.help_wanted import HelpWanted, help_wanted
from tests.helpers.command_line import say

COMMANDS = cli.subcommands(cli.make_app())
FLAGS = {
    name: {alias for flag in flag_texts(app) for alias in (*flag.plain_names, *(n.replace("[", "").replace("]", "")
           for n in flag.names))} | {"--help", "--help-all"}
    for name, app in COMMANDS.items()
}  # fmt: skip


@pytest.fixture(autouse=True)
def _a_terminal_of_80(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_help_of_trillm_itself_fits_a_terminal_of_24_lines(capsys, words):
    said = say(capsys, *words)
    assert said.status == 0
    lines = said.out.splitlines()
    assert len(lines) <= 24
    assert "trillm serve" in said.out
    for name in COMMANDS:
        assert any(line.startswith(f"  {name} ") for line in lines), name


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(capsys, monkeypatch, command, width):
    monkeypatch.setenv("COLUMNS", str(width))
    text = say(capsys, command, "--help=all").out
    examples = re.findall(r"^  .*trillm .*$", text, re.MULTILINE)  # these stay as they can be copied
    long = [line for line in text.splitlines() if len(line) > width and line not in examples and " " in line.strip()]
    unbroken = ("  -", "Usage: ")
    assert [line for line in long if not line.startswith(unbroken) and not line.endswith("):")] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_examples_that_could_be_typed(capsys, command):
    text = say(capsys, command, "--help").out
    examples = [line.strip() for line in text.splitlines() if re.match(r"  (\S.*)?trillm ", line)]
    assert examples
    for example in examples:
        words = shlex.split(example.replace("<(", "").replace(")'", "'"))
        start = len(words) - 1 - words[::-1].index("trillm") if "trillm" in words else 0
        used = words[start + 1 :]
        if not used or used[0] not in COMMANDS:
            continue  # echo '… trillm completion bash'
        assert {word.split("=")[0] for word in used if word.startswith("-")} <= FLAGS[used[0]]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_plain_text_that_any_terminal_shows(capsys, command):
    assert say(capsys, command, "--help=all").out.isascii()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_only_flags_that_there_are(capsys, command):
    text = say(capsys, command, "--help=all").out
    every = set().union(*FLAGS.values()) | {"--help"}
    named = {name.rstrip("-.") for name in re.findall(r"(?<![\w\[-])--[a-z][a-z0-9-]+", text)}
    assert named - every - {"--no-responses-store", "--no-console", "--no-http2", "--kv"} == set()


def test_the_page_of_serve_is_short_and_leads_to_the_rest(capsys):
    short, all_of_it = say(capsys, "serve", "--help").out, say(capsys, "serve", "--help=all").out
    assert len(short.splitlines()) <= 45
    assert "--help=all" in short
    shown = [flag for flag in flag_texts(COMMANDS["serve"]) if flag.is_shown]
    for flag in shown:
        assert flag.is_argument or f"  {flag.label}" in all_of_it
    assert say(capsys, "serve", "--help-all").out == all_of_it
    assert say(capsys, "serve", "--help=page").out == all_of_it  # where there is no terminal to turn pages on


def test_each_flag_that_is_set_every_day_is_one():
    for command, flags in EVERYDAY.items():
        assert set(flags) <= FLAGS[command]


def test_groups_can_be_asked_for_one_by_one(capsys):
    groups = list(dict.fromkeys(flag.group for flag in flag_texts(COMMANDS["serve"]) if not flag.is_argument))
    assert len({keyword(group) for group in groups}) == len(groups)
    listed = say(capsys, "serve", "--help=listgroup").out
    for group in groups:
        assert f"--help={keyword(group)} " in listed
        told = say(capsys, "serve", f"--help={keyword(group)}").out
        assert told.startswith(f"{group}:\n")
        assert say(capsys, "serve", f"--help={group}").out == told


def test_a_flag_can_be_asked_for_by_its_name_or_a_part(capsys):
    assert "--port N" in say(capsys, "serve", "--help=port").out
    assert "--max-model-len N" in say(capsys, "serve", "--help=max_model_len").out
    several = say(capsys, "serve", "--help=kv-cache").out
    assert "--kv-cache-dtype" in several
    assert "--kv-cache-memory-bytes" in several
    assert "did you mean --help=max-model-len?" in say(capsys, "serve", "--help=max-modell-len").err


def test_help_is_wanted_wherever_it_stands():
    assert help_wanted(["serve", "m", "--port", "1", "-h"], COMMANDS) == HelpWanted("serve", "")
    assert help_wanted(["help", "proxy"], COMMANDS) == HelpWanted("proxy", "")
    assert help_wanted(["--help", "serve"], COMMANDS) == HelpWanted(None, "")
    assert help_wanted(["serve", "--help=lora"], COMMANDS) == HelpWanted("serve", "lora")
    assert help_wanted(["chat", "--", "--help"], COMMANDS) is None
    assert help_wanted(["serve", "m"], COMMANDS) is None


def test_a_terminal_has_bold_headings_unless_colours_are_unwanted(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert cli.has_styles()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not cli.has_styles()
