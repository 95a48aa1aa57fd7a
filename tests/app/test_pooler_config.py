"""--pooler-config goes before the checkpoint, field by field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.checkpoints.pooler import Pooler
from app.pooler_config import pooler
from app.settings import Settings
from protocol.errors import BadRequestError
from protocol.pooling import Pooling


def write_modules(directory: Path, *kinds: str) -> Path:
    modules = [{"path": "" if kind == "Transformer" else kind, "type": f"models.{kind}"} for kind in kinds]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "Pooling").mkdir()
    (directory / "Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    return directory


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, Pooler(Pooling.MEAN, normalize=False)),
        ("{}", Pooler(Pooling.MEAN, normalize=False)),
        ('{"normalize": true}', Pooler(Pooling.MEAN, normalize=True)),
        ('{"pooling_type": "CLS"}', Pooler(Pooling.CLS, normalize=False)),
        ('{"pooling_type": "LAST", "normalize": true}', Pooler(Pooling.LAST, normalize=True)),
    ],
)
def test_what_is_given_goes_before_the_checkpoint(tmp_path: Path, text: str | None, expected: Pooler):
    assert pooler(text, write_modules(tmp_path, "Transformer", "Pooling")) == expected


def test_who_says_what_is_pooled_takes_the_vector_as_it_then_is(tmp_path: Path):
    write_modules(tmp_path, "Transformer", "Pooling", "Dense")
    assert pooler('{"normalize": true}', tmp_path).refusal == "modules.json has a module Dense"
    assert pooler('{"pooling_type": "MEAN"}', tmp_path).refusal is None


@pytest.mark.parametrize("text", ["{", '{"pooling_type": "MAX"}', '{"task": "embed"}', '{"normalize": 1}'])
def test_what_cannot_be_meant_is_refused_at_the_start(text: str):
    with pytest.raises(BadRequestError, match="--pooler-config must be a JSON object with pooling_type"):
        Settings(pooler_config=text)
