"""The library's vocabulary, out of the served checkpoint and without the network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tokenizers

from app.dialects.dialect import Dialect
from app.harmony.harmony import open_harmony
from app.harmony.vocabulary import FILE, vocabulary_directory
from app.served_harmony import ending_tokens, served_harmony
from app.tokenizer import Tokenizer
from protocol.errors import CheckpointError
from tests.helpers.app_under_test import make_tokenizer
from tests.helpers.harmony_vocabulary import gpt_oss, gpt_oss_tokenizer

HARMONY = Dialect("openai", "openai_gptoss")


def test_the_file_is_made_once_and_mended_when_it_is_damaged(tmp_path: Path) -> None:
    path = vocabulary_directory(gpt_oss_tokenizer(), tmp_path) / FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    vocabulary_directory(gpt_oss_tokenizer(), tmp_path)
    assert path.read_bytes() == whole
    assert os.listdir(path.parent) == [FILE]


def test_a_file_that_is_there_is_used_and_the_environment_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = vocabulary_directory(gpt_oss_tokenizer(), tmp_path) / FILE
    made = path.stat().st_mtime_ns
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", "somewhere")
    open_harmony(gpt_oss_tokenizer(), tmp_path)
    assert os.environ["TIKTOKEN_ENCODINGS_BASE"] == "somewhere"
    assert path.stat().st_mtime_ns == made


def test_another_vocabulary_is_served_by_its_template(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert served_harmony(HARMONY, make_tokenizer(), tmp_path) is None
    [record] = caplog.records
    assert "199998 tokens are not those of o200k_base" in record.getMessage()
    assert not list(tmp_path.iterdir())


def test_a_model_that_speaks_something_else_is_not_looked_at(tmp_path: Path) -> None:
    assert served_harmony(Dialect("hermes"), gpt_oss_tokenizer(), tmp_path) is None


def test_control_tokens_have_to_be_the_library_s(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Misnumbered(Tokenizer):
        def __init__(self) -> None:
            self.special_tokens = {**gpt_oss_tokenizer().special_tokens, "<|call|>": 200_013}

        def token(self, token_id: int) -> str:
            return gpt_oss_tokenizer().token(token_id)

    assert served_harmony(HARMONY, Misnumbered(), tmp_path) is None
    assert "its control token <|call|> is 200013, not 200012" in caplog.text


def test_a_cache_that_cannot_be_written_costs_the_library_and_not_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "harmony").write_text("in the way")
    assert served_harmony(HARMONY, gpt_oss_tokenizer(), tmp_path) is None
    assert "cannot be written" in caplog.text


def test_words_that_are_no_byte_level_tokens_are_refused(tmp_path: Path) -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"two words": 0}, unk_token="two words"))
    with pytest.raises(CheckpointError, match="byte-level"):
        vocabulary_directory(Tokenizer(words, words), tmp_path)


def test_what_ends_a_call_ends_an_answer() -> None:
    assert ending_tokens([200_002, 199_999], gpt_oss()) == (200_002, 199_999, 200_012)
    assert ending_tokens([5], None) == (5,)
