"""A wrong command line is answered in a sentence or two that say what would be right, and status 2."""

from __future__ import annotations

import pytest

from app import cli
from app.own_command import own_command
from protocol.errors import BadRequestError
from tests.helpers.command_line import say


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("serve --max-model-length 4", "serve has no flag --max-model-length; did you mean --max-model-len?"),
        ("serve --max_model_length=4", "serve has no flag --max_model_length; did you mean --max-model-len?"),
        ("serve --flavour sweet", "serve has no flag --flavour"),
        ("serve --port", "--port needs a value"),
        ("serve --port x", "--port: 'x' is no whole number"),
        ("serve --shutdown-timeout x", "--shutdown-timeout: 'x' is no number"),
        ("serve --enable-lora=maybe", "--enable-lora: 'maybe' is no yes or no"),
        ("serve --port 70000", "--port must be from 0 to 65535, not 70000"),
        ("serve --device tpu", "--device: 'tpu' is none of auto, cpu, cuda; did you mean cpu?"),
        ("serve --quantization awq", "--quantization: 'awq' is none of fp8"),
        ("serve --port 1 --port 2", "--port is given more than once"),
        ("serve --no-enable-log-requests", "there is no --no-enable-log-requests: leave --enable-log-requests out"),
        ("serve --http2 false", "false is no model: a switch is on by its name alone, and off as --no-NAME"),
        ("serve one two", "serve does not take 'two'"),
        ("chat why not", "chat does not take 'not': a question of several words stands in quotes"),
        ("serv", "there is no command 'serv'; did you mean serve?"),
        ("Qwen/Qwen3-0.6B", f"did you mean `{own_command('serve')} Qwen/Qwen3-0.6B`?"),
        ("model.gguf", f"did you mean `{own_command('serve')} model.gguf`?"),
        ("--port 80", f"flags follow a command: `{own_command('serve')} --port`"),
        ("completion", "completion needs a SHELL"),
        ("completion tcsh", "SHELL: 'tcsh' is none of bash, zsh, fish"),
        ("serve --help=nonsense", "no group or flag of serve has 'nonsense' in its name"),
    ],
)
def test_a_mistake_is_told_with_what_would_be_right(capsys, words, sentence):
    said = say(capsys, *words.split())
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("trillm: ")
    assert sentence in said.err
    assert len(said.err.splitlines()) <= 2
    assert said.err.isascii()  # no boxes


def test_a_variable_is_named_as_such(capsys, monkeypatch):
    monkeypatch.setenv("TRILLM_PORT", "x")
    assert say(capsys, "serve").err.startswith("trillm: TRILLM_PORT: 'x' is no whole number\n")
    with pytest.raises(BadRequestError, match=r"^TRILLM_PORT: 'x' is no whole number$"):
        cli.settings_from_environment()
