"""Models that are fetched before they are served."""

from __future__ import annotations

from pathlib import Path

import pytest

import app.logs
from app.checkpoints.default_model import FILE
from app.commands.cached_models import CachedModel, cached_models
from app.commands.pull import listed, pull, size
from app.own_command import own_command
from protocol.errors import BadRequestError
from tests.helpers.tiny_gguf import write_gguf


@pytest.fixture(autouse=True)
def _log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers of the log would outlive the test."""
    monkeypatch.setattr(app.logs, "set_up_logging", lambda _: None)


def test_a_directory_is_told_with_how_to_serve_it(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pull(str(checkpoint)) == 0
    name, place, serve = capsys.readouterr().out.splitlines()
    assert name == f"{checkpoint.name} is ready (LlamaForCausalLM, a context of 2048 tokens)"
    assert place == f"in {checkpoint}"
    assert serve == f"Serve it: {own_command('serve', str(checkpoint))}"


def test_what_cannot_be_had_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pull(str(tmp_path / "none.gguf"), download_dir=tmp_path) == 1
    assert capsys.readouterr().err.endswith("none.gguf: no such file or directory\n")


def test_a_revision_of_no_model_is_refused() -> None:
    with pytest.raises(BadRequestError, match=r"name the model, as \S*trillm pull Qwen/Qwen3-0.6B --revision v2"):
        pull(revision="v2")


def test_what_lies_there_but_cannot_be_served_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert pull(str(tmp_path)) == 1
    assert "config.json: vocab_size" in capsys.readouterr().err


def test_what_is_on_the_disk_is_listed(tmp_path: Path) -> None:
    default = tmp_path / "cache" / "default" / FILE
    default.parent.mkdir(parents=True)
    default.write_bytes(b"x" * 10)
    snapshot = tmp_path / "hub" / "models--owner--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")

    found = cached_models(tmp_path / "cache", tmp_path / "hub")

    assert [(model.name, model.num_bytes) for model in found] == [("SmolLM2-135M-Instruct", 10), ("owner/tiny", 2)]


def test_a_converted_file_is_listed_as_long_as_it_is_there(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf")
    assert pull(str(file), download_dir=tmp_path / "cache") == 0
    assert [model.path for model in cached_models(tmp_path / "cache", tmp_path)] == [file]
    file.unlink()
    assert cached_models(tmp_path / "cache", tmp_path) == []


def test_nothing_on_the_disk_is_told_with_what_to_do() -> None:
    assert own_command("pull") in listed([])


def test_the_list_is_aligned() -> None:
    models = [CachedModel("a", 1_500_000, Path("/a")), CachedModel("longer", 999, Path("/b"))]
    assert listed(models) == "a         1.5 MB  /a\nlonger     999 B  /b"


@pytest.mark.parametrize(("num_bytes", "text"), [(0, "0 B"), (98_362_432, "98.4 MB"), (2.5e12, "2.5 TB")])
def test_sizes_are_as_downloads_tell_them(num_bytes: float, text: str) -> None:
    assert size(num_bytes) == text
