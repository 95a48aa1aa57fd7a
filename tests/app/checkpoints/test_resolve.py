from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from app.checkpoints.inspect import describe
from app.checkpoints.resolve import Checkpoint, Source, resolve
from app.checkpoints.weights import check_weights
from protocol.errors import CheckpointError
from tests.helpers.tiny_gguf import write_gguf


class Reports(list[tuple[str, int, int]]):
    def __call__(self, what: str, done: int, total: int) -> None:
        self.append((what, done, total))


def open_model(model: Path | str, cache: Path, reports: Reports | None = None) -> Checkpoint:
    return resolve(str(model), cache_dir=cache, report=Reports() if reports is None else reports)


def test_a_gguf_file_becomes_a_checkpoint_directory_once(tmp_path: Path):
    path = write_gguf(tmp_path / "tiny.model.gguf")
    reports = Reports()
    checkpoint = open_model(path, tmp_path / "cache", reports)
    assert (checkpoint.name, checkpoint.source) == ("tiny.model", Source.GGUF)
    assert reports == [
        ("reading tiny.model.gguf", 0, path.stat().st_size),
        ("reading tiny.model.gguf", *[path.stat().st_size] * 2),
    ]
    index = json.loads((checkpoint.directory / "gguf.json").read_text())
    assert {key: index[key] for key in ("version", "file", "size", "architecture")} == {
        "version": 1,
        "file": str(path),
        "size": path.stat().st_size,
        "architecture": "llama",
    }
    (embedding,) = index["tensors"]
    assert embedding["name"] == "token_embd.weight"
    assert embedding["offset"] + embedding["nbytes"] == path.stat().st_size
    description = describe(checkpoint.directory)
    assert description.eos_token_ids == (2,)
    assert description.chat_template
    check_weights(checkpoint.directory)
    assert open_model(path, tmp_path / "cache", reports) == checkpoint
    assert len(reports) == 2


def test_a_changed_gguf_file_is_converted_again(tmp_path: Path):
    path = write_gguf(tmp_path / "m.gguf")
    first = open_model(path, tmp_path / "cache").directory
    write_gguf(path, changes={"llama.context_length": 64})
    second = open_model(path, tmp_path / "cache").directory
    assert (describe(first).max_position_embeddings, describe(second).max_position_embeddings) == (128, 64)


@pytest.mark.parametrize("damage", ["gguf.json", "tokenizer.json", "config.json"])
def test_a_damaged_conversion_is_made_again(damage: str, tmp_path: Path):
    path = write_gguf(tmp_path / "m.gguf")
    directory = open_model(path, tmp_path / "cache").directory
    before = (directory / damage).read_bytes()
    (directory / damage).unlink()
    assert open_model(path, tmp_path / "cache").directory == directory
    assert (directory / damage).read_bytes() == before
    assert [entry.name for entry in directory.parent.iterdir()] == [directory.name]


def test_two_conversions_at_once_end_with_one_whole_directory(tmp_path: Path):
    path = write_gguf(tmp_path / "m.gguf")
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: open_model(path, tmp_path / "cache").directory, range(8)))
    (directory,) = found
    Tokenizer.from_file(str(directory / "tokenizer.json"))
    check_weights(directory)
    assert [entry.name for entry in directory.parent.iterdir()] == [directory.name]


def test_more_tokens_than_embedding_rows_are_refused(tmp_path: Path):
    path = write_gguf(tmp_path / "m.gguf", rows=3)
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.tokens has \d+ tokens, but token_embd\.weight only 3"):
        open_model(path, tmp_path / "cache")


def test_a_directory_is_served_as_it_is(tmp_path: Path):
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("{}")
    checkpoint = open_model(tmp_path / "my-model", tmp_path)
    assert checkpoint == Checkpoint(tmp_path / "my-model", "my-model", Source.DIRECTORY)


def test_a_directory_with_one_gguf_file_means_that_file(tmp_path: Path):
    directory = tmp_path / "d"
    directory.mkdir()
    with pytest.raises(CheckpointError, match=r"has neither config\.json nor a \.gguf file"):
        open_model(directory, tmp_path / "cache")
    write_gguf(directory / "a.gguf")
    assert open_model(directory, tmp_path / "cache").name == "a"
    write_gguf(directory / "b.gguf")
    with pytest.raises(CheckpointError, match=r"has several \.gguf files.*: a\.gguf, b\.gguf"):
        open_model(directory, tmp_path / "cache")


@pytest.mark.parametrize("model", ["./absent", "/absent/model", "absent.gguf", "~/absent", "a/b/c", "../x", "x/"])
def test_a_path_that_does_not_exist_is_not_looked_up_on_the_hub(model: str, tmp_path: Path):
    with pytest.raises(CheckpointError) as caught:
        open_model(model, tmp_path)
    assert caught.value.message == f"{model}: no such file or directory"


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"something else")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        open_model(path, tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path):
    path = write_gguf(tmp_path / "m.gguf")
    (tmp_path / "cache").write_text("a file where the directory should be")
    with pytest.raises(CheckpointError, match=r"cache.*cannot be written"):
        open_model(path, tmp_path / "cache")
