"""A service whose checkpoint is gpt-oss's, as far as its tokeniser tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.checkpoints.inspect import describe
from app.checkpoints.resolve import Checkpoint, Source
from app.harmony.template import HarmonyTemplate
from app.harmony.vocabulary import FILE
from app.launch import engine_client
from app.render import ChatTemplate
from app.service import Service
from app.settings import Settings
from tests.helpers.dummy_checkpoint import write_dummy_checkpoint
from tests.helpers.harmony_vocabulary import tokenizer_json


def write_gpt_oss(directory: Path) -> Path:
    """Without weights, for the dummy runner; its generation config does not know what ends a call."""
    write_dummy_checkpoint(directory)
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer.json").symlink_to(tokenizer_json())
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|return|>"}))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"vocab_size": 201_088, "eos_token_id": 200_002}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [200_002, 199_999]}))
    return directory


@pytest.mark.parametrize("given", [None, "{{ messages[0].content }}"])
def test_openai_harmony_serves_it_unless_the_operator_brings_a_template(tmp_path: Path, given: str | None) -> None:
    checkpoint = write_gpt_oss(tmp_path / "gpt-oss")
    settings = Settings(
        load_format="dummy", download_dir=tmp_path / "cache", chat_template=given, responses_store=False
    )
    client = engine_client(settings)
    service = Service(settings, Checkpoint(checkpoint, "gpt-oss", Source.DIRECTORY), describe(checkpoint), client)
    assert isinstance(service.services.template, HarmonyTemplate if given is None else ChatTemplate)
    assert service.services.harmony is not None
    assert service.services.model.eos_token_ids == (200_002, 199_999, 200_012)
    assert (tmp_path / "cache" / "harmony" / FILE).is_file()
