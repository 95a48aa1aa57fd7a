"""How a checkpoint says that its embeddings are made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.checkpoints.gguf_checkpoint import open_gguf
from app.checkpoints.pooler import Pooler, read_pooler
from protocol.errors import CheckpointError
from protocol.pooling import Pooling
from tests.helpers.tiny_gguf import write_gguf

OLD = {"word_embedding_dimension": 8, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}


def write(directory: Path, pooling: dict[str, Any], *kinds: str) -> Path:
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(("Transformer", "Pooling", *kinds))
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


def test_a_checkpoint_that_says_nothing_has_the_last_token_normalised(tmp_path: Path):
    assert read_pooler(tmp_path) == Pooler(Pooling.LAST, normalize=True)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (OLD | {"pooling_mode_mean_tokens": True}, Pooling.MEAN),
        (OLD | {"pooling_mode_cls_token": True, "include_prompt": True}, Pooling.CLS),
        (OLD | {"pooling_mode_lasttoken": True}, Pooling.LAST),
        ({"pooling_mode": "mean"}, Pooling.MEAN),
        ({"pooling_mode": "cls"}, Pooling.CLS),
        ({"pooling_mode": "lasttoken"}, Pooling.LAST),
    ],
)
def test_sentence_transformers_modules_say_what_is_pooled_and_whether_it_is_normalised(
    tmp_path: Path, pooling: dict[str, Any], expected: Pooling
):
    assert read_pooler(write(tmp_path, pooling)) == Pooler(expected, normalize=False)
    (tmp_path / "again").mkdir()
    assert read_pooler(write(tmp_path / "again", pooling, "Normalize")) == Pooler(expected, normalize=True)


@pytest.mark.parametrize(
    ("pooling", "kinds", "told"),
    [
        ({"pooling_mode": "mean"}, ("Dense", "Normalize"), "module Dense"),
        ({"pooling_mode": "max"}, (), "pooling by max"),
        (OLD | {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, (), "mean_tokens and max_tokens"),
        (OLD, (), "pooling by nothing"),
    ],
)
def test_what_is_not_computed_is_said(tmp_path: Path, pooling: dict[str, Any], kinds: tuple[str, ...], told: str):
    refusal = read_pooler(write(tmp_path, pooling, *kinds)).refusal
    assert refusal is not None
    assert told in refusal


def test_damaged_files_are_named(tmp_path: Path):
    write(tmp_path, {"pooling_mode": "mean"})
    (tmp_path / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"1_Pooling/config.json"):
        read_pooler(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_pooler(tmp_path)
    (tmp_path / "modules.json").write_text('[{"path": "../elsewhere", "type": "a.Pooling"}]')
    with pytest.raises(CheckpointError, match="no directory beside it"):
        read_pooler(tmp_path)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(1, Pooling.MEAN), (2, Pooling.CLS), (3, Pooling.LAST), (0, Pooling.LAST), (None, Pooling.LAST)],
)
def test_a_gguf_file_says_it_in_its_own_words(tmp_path: Path, kind: int | None, expected: Pooling):
    path = write_gguf(tmp_path / "m.gguf", "qwen3", {"qwen3.pooling_type": kind})
    directory = open_gguf(path, tmp_path, lambda *_: None)
    assert read_pooler(directory) == Pooler(expected, normalize=True)
    assert (directory / "modules.json").exists() == bool(kind)
