from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from app.checkpoints.weights import INDEX, SINGLE, check_weights
from protocol.errors import CheckpointError

TENSORS = {"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 2), dtype=np.float16)}


def refusal(directory: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        check_weights(directory)
    return caught.value.message


def write_shards(directory: Path, weight_map: dict[str, str]) -> None:
    for shard, names in {"1.safetensors": ["a"], "2.safetensors": ["b"]}.items():
        save_file({name: TENSORS[name] for name in names}, directory / shard)
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_whole_files_pass(tmp_path: Path):
    save_file(TENSORS, tmp_path / SINGLE, metadata={"format": "pt"})
    check_weights(tmp_path)
    write_shards(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"})
    check_weights(tmp_path)


def test_every_truncated_length_is_refused_with_both_sizes(tmp_path: Path):
    path = tmp_path / SINGLE
    save_file(TENSORS, path)
    content = path.read_bytes()
    for length in [*range(0, len(content), 5), len(content) - 1]:
        path.write_bytes(content[:length])
        message = refusal(tmp_path)
        assert message.startswith(f"{path}: has {length} bytes, expected")
    path.write_bytes(content + b"x")
    assert f"has {len(content) + 1} bytes, expected {len(content)}" in refusal(tmp_path)


@pytest.mark.parametrize("header", [b"{", b"[]", b'{"a": {"dtype": "F32"}}', b'{"a": 1}', b"\xff\xff"])
def test_a_damaged_header_is_refused(header: bytes, tmp_path: Path):
    (tmp_path / SINGLE).write_bytes(len(header).to_bytes(8, "little") + header)
    assert "safetensors header is damaged" in refusal(tmp_path)


def test_missing_and_contradicting_shards_are_refused(tmp_path: Path):
    write_shards(tmp_path, {"a": "1.safetensors", "b": "1.safetensors"})
    assert "1.safetensors: tensor b is missing" in refusal(tmp_path)
    write_shards(tmp_path, {"a": "1.safetensors", "b": "3.safetensors"})
    assert "3.safetensors: the file is missing" in refusal(tmp_path)
    write_shards(tmp_path, {"a": "../1.safetensors"})
    assert "not a plain file name" in refusal(tmp_path)
    write_shards(tmp_path, {})
    assert "weight_map is missing" in refusal(tmp_path)
    (tmp_path / INDEX).write_text("{")
    assert f"{INDEX}: cannot be read" in refusal(tmp_path)


def test_a_directory_without_safetensors_says_what_is_needed(tmp_path: Path):
    assert "no weights: expected model.safetensors" in refusal(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "safetensors is needed" in refusal(tmp_path)


def test_a_gguf_file_that_changed_or_went_is_refused(tmp_path: Path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"12345")
    (tmp_path / "gguf.json").write_text(json.dumps({"file": str(file), "size": 5}))
    check_weights(tmp_path)
    file.write_bytes(b"123")
    assert f"{file}: has 3 bytes, expected 5" in refusal(tmp_path)
    file.unlink()
    assert "No such file" in refusal(tmp_path)
    (tmp_path / "gguf.json").write_text("{}")
    assert "file and size are missing" in refusal(tmp_path)
