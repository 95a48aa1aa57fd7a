"""Flags go before variables, variables before the file, and what the file says is as strict as a flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import cli
from app.commands.sources import SettingsFile, read_toml, settings_file
from app.settings import Settings
from protocol.errors import BadRequestError
from tests.helpers.command_line import say


def test_a_flag_names_the_file_before_the_variable_does():
    environment = {"TRILLM_CONFIG": "c.toml"}
    named = SettingsFile("a.toml", "--config")
    assert settings_file(["serve", "m", "--config", "a.toml"], environment) == named
    assert settings_file(["serve", "--config=a.toml"], {}) == named
    assert settings_file(["serve", "--", "--config", "a.toml"], environment) == SettingsFile("c.toml", "TRILLM_CONFIG")
    assert settings_file(["serve", "--config"], {}) is None


def served(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[str | None, Settings]:
    """MODEL and settings, without anything that is served."""
    _, bound, _ = cli.make_app(words).parse_args(words, exit_on_error=False, print_error=False)
    return (*bound.args, None)[0], bound.kwargs["settings"]


def test_a_file_says_what_neither_flag_nor_variable_does(monkeypatch, tmp_path: Path):
    file = tmp_path / "trillm.toml"
    file.write_text('model = "m"\nport = 1\nmax-num-seqs = 2\nmax_model_len = "16k"\napi_key = ["a", "b"]\n')
    monkeypatch.setenv("TRILLM_MAX_NUM_SEQS", "3")
    model, settings = served(monkeypatch, "serve", "--config", str(file), "--port", "4")
    assert (model, settings.port, settings.max_num_seqs, settings.max_model_len) == ("m", 4, 3, 16_000)
    assert settings.api_key == ("a", "b")


def test_a_file_may_begin_as_windows_editors_have_it(monkeypatch, tmp_path: Path):
    file = tmp_path / "trillm.toml"
    file.write_text("port = 1\r\n", encoding="utf-8-sig")
    assert served(monkeypatch, "serve", "--config", str(file))[1].port == 1


def test_a_file_without_an_end_is_not_read_to_it():
    with pytest.raises(BadRequestError, match="more than 1048576 bytes"):
        read_toml(SettingsFile("/dev/zero", "--config"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max_model_length = 4", "there is no setting 'max_model_length'; did you mean max_model_len?"),
        ("gpu_memory_utilization = 0.9", "there is no setting 'gpu_memory_utilization': the KV cache is sized"),
        ('port = "x"', "port: 'x' is no whole number"),
        ('device = "tpu"', "device: 'tpu' is none of auto, cpu, cuda"),
        ("[server]\nport = 1", "settings stand at the top, not in a table such as [server]"),
        ('config = "other.toml"', "one file cannot name another by `config`"),
        ("port 1", "(--config) cannot be read: "),
        ("port = " + 5000 * "[", "(--config) cannot be read: it is nested too deeply"),
        ("#" + (1 << 20) * "x", "(--config) has more than 1048576 bytes"),
    ],
)
def test_what_a_file_may_not_say_is_told_with_its_name(capsys, tmp_path: Path, text, sentence):
    file = tmp_path / "trillm.toml"
    file.write_text(text + "\n")
    said = say(capsys, "serve", "--config", str(file))
    assert said.status == 2
    assert str(file) in said.err
    assert sentence in said.err


def test_a_file_that_is_not_there_is_told_in_words(capsys, tmp_path: Path):
    file = tmp_path / "none.toml"
    said = say(capsys, "serve", "--config", str(file))
    assert (said.status, said.err) == (2, f"trillm: {file} (--config): there is no such file\n")


def test_vllm_s_yaml_is_refused_with_how_it_would_look(capsys):
    assert "is YAML, and trillm reads TOML: vLLM's `max-model-len: 8192`" in say(capsys, "serve", "--config=c.yaml").err


def test_a_file_for_the_server_does_not_get_in_the_way_of_other_commands(capsys, monkeypatch, tmp_path: Path):
    file = tmp_path / "trillm.toml"
    file.write_text("port = 1\n")
    monkeypatch.setenv("TRILLM_CONFIG", str(file))
    assert say(capsys, "version").status == 0


def test_a_file_that_cannot_be_read_keeps_nobody_from_help(capsys, monkeypatch):
    monkeypatch.setenv("TRILLM_CONFIG", "/nowhere/trillm.toml")
    for words in (["--help"], ["serve", "--help"], ["version"], ["completion", "bash"]):
        assert say(capsys, *words).status == 0, words
    assert "(TRILLM_CONFIG): there is no such file" in say(capsys, "check").err
    with pytest.raises(BadRequestError, match="TRILLM_CONFIG"):
        cli.settings_from_environment()
