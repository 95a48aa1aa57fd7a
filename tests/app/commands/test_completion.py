"""Shells complete trillm's words."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from app.cli import make_app
from app.commands.completion import completion_script
from tests.helpers.command_line import say

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_trillm trillm "${@: -1}" "${@: -2:1}"
printf '%s\n' "${COMPREPLY[@]}"
"""
"""How bash asks for completions of its last word."""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("ser",), {"serve"}),
        (("serve", "--max-mod"), {"--max-model-len"}),
        (("serve", "--device", ""), {"auto", "cpu", "cuda"}),
        (("serve", "m", "--port", "80", "--dty"), {"--dtype"}),
        (("completion", ""), {"bash", "zsh", "fish"}),
        (("version", "--a"), {"--all"}),
    ],
)
def test_bash_completes_commands_flags_and_values(tmp_path: Path, words, completed):
    script = tmp_path / "trillm.bash"
    script.write_text(completion_script(make_app(), "bash"))
    asked = ["bash", "--norc", "-c", ASK, "bash", str(script), "trillm", *words]
    told = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert set(told.stdout.split()) == completed
    assert told.stderr == ""


def test_zsh_can_load_it_as_a_file_of_its_function_path_and_as_a_script():
    script = completion_script(make_app(), "zsh")
    assert script.startswith("#compdef trillm\n")
    assert "\n_trillm() {\n" in script
    assert script.endswith("compdef _trillm trillm\nfi\n")


def test_it_is_written_for_three_shells(capsys):
    for shell in ("bash", "zsh", "fish"):
        told = say(capsys, "completion", shell)
        assert told.status == 0
        assert "max-model-len" in told.out
