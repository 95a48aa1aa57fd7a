from __future__ import annotations

import threading
from pathlib import Path

import pytest

from app.checkpoints.hub import fetch_repository, find_repository
from protocol.errors import CheckpointError
from tests.helpers.hub_server import COMMIT, PART, REPOSITORY, hub_server

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"w" * 300_000,
    "chat_template.jinja": b"{{ 1 }}",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"again",
    "README.md": b"read me",
}


def quiet(_what: str, _done: int, _total: int) -> None:
    pass


def refusal(repository: str, endpoint: str, cache: Path, revision: str | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        fetch_repository(repository, quiet, revision=revision, endpoint=endpoint, hub_cache=cache)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_repository_is_fetched_without_pickles_and_served_again_offline(tmp_path: Path):
    with hub_server(FILES) as endpoint:
        directory = fetch_repository(REPOSITORY, quiet, endpoint=endpoint, hub_cache=tmp_path)
        assert sorted(file.name for file in directory.iterdir()) == [
            "chat_template.jinja",
            "config.json",
            "model.safetensors",
        ]
        assert (directory / "model.safetensors").read_bytes() == FILES["model.safetensors"]
        assert directory.name == COMMIT
    assert fetch_repository(REPOSITORY, quiet, endpoint=endpoint, hub_cache=tmp_path) == directory


def test_what_has_been_fetched_is_found_without_the_hub(tmp_path: Path):
    assert find_repository(REPOSITORY, hub_cache=tmp_path) is None
    with hub_server(FILES) as endpoint:
        directory = fetch_repository(REPOSITORY, quiet, endpoint=endpoint, hub_cache=tmp_path)
    assert find_repository(REPOSITORY, hub_cache=tmp_path) == directory
    for name in ("org/absent", "a b", "org/name/more", "", "-x/y"):
        assert find_repository(name, hub_cache=tmp_path) is None


def test_what_the_hub_refuses_is_said_in_one_sentence(tmp_path: Path):
    with hub_server(FILES) as endpoint:
        assert "org/absent was not found" in refusal("org/absent", endpoint, tmp_path)
        assert "org/gated is gated" in refusal("org/gated", endpoint, tmp_path)
        assert "(revision v9) has no such revision" in refusal(REPOSITORY, endpoint, tmp_path, "v9")
    assert "the Hub cannot be reached" in refusal(REPOSITORY, endpoint, tmp_path)


@pytest.mark.parametrize("name", ["a b", "org/name/more", "", "org//name", "org/na:me", "-x/y"])
def test_a_text_that_is_no_repositorys_name_is_not_looked_up(name: str, tmp_path: Path):
    assert "neither a path that exists nor the name of a model" in refusal(name, "http://127.0.0.1:9", tmp_path)


def test_an_exception_from_the_progress_report_ends_the_fetch(tmp_path: Path):
    class Stopped(Exception):
        pass

    seen = []
    gate = threading.Event()

    def stop(_what: str, done: int, total: int) -> None:
        seen.append((done, total))
        if done:
            gate.set()
            raise Stopped

    size = 6 * PART
    with hub_server({"model.safetensors": bytes(size)}, gate) as endpoint, pytest.raises(Stopped):
        fetch_repository(REPOSITORY, stop, endpoint=endpoint, hub_cache=tmp_path)
    assert seen[-1][1] == size
    assert 0 < seen[-1][0] < size
    assert list(tmp_path.rglob("model.safetensors")) == []
