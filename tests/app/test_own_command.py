"""Hints name a command that can be typed where they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.own_command import own_command, own_name


def made(scripts: Path) -> Path:
    scripts.mkdir(parents=True)
    script = scripts / "trillm"
    script.touch(0o755)
    return scripts


def test_what_the_shell_finds_is_called_by_its_name(tmp_path: Path) -> None:
    scripts = made(tmp_path / ".venv" / "bin")
    linked = tmp_path / "bin"
    linked.mkdir()
    (linked / "trillm").symlink_to(scripts / "trillm")
    assert own_name(scripts, f"/nowhere:{scripts}") == "trillm"
    assert own_name(scripts, str(linked)) == "trillm"


def test_what_it_does_not_find_is_called_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = made(tmp_path / ".venv" / "bin")
    another = made(tmp_path / "another")
    monkeypatch.chdir(tmp_path)
    assert own_name(scripts, "/nowhere") == ".venv/bin/trillm"
    assert own_name(scripts, str(another)) == ".venv/bin/trillm"
    monkeypatch.chdir(scripts)
    assert own_name(scripts, "") == "./trillm"
    monkeypatch.chdir(another)
    assert own_name(scripts, "") == f"{scripts}/trillm"


def test_it_is_found_below_a_directory_that_goes_by_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "there" / "bin")
    (tmp_path / "here").symlink_to(tmp_path / "there")
    monkeypatch.chdir(tmp_path / "here")
    assert own_name(tmp_path / "here" / "bin", "") == "bin/trillm"


def test_without_a_script_there_is_but_the_name(tmp_path: Path) -> None:
    assert own_name(tmp_path, "") == "trillm"


def test_words_are_quoted_for_a_shell() -> None:
    assert own_command("chat", "--uds", "/run/a b").endswith("trillm chat --uds '/run/a b'")
