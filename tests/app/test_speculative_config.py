"""--speculative-config is vLLM's JSON, and what cannot be served of it is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from app.checkpoints.inspect import describe
from app.commands.fetch import fetch
from app.launch import check_draft, checked
from app.settings import Settings
from app.speculative_config import read_speculative_config
from protocol.errors import BadRequestError, CheckpointError
from protocol.spec import DraftModelSpec, SpeculativeSpec
from tests.helpers.dummy_checkpoint import write_dummy_checkpoint


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        (None, None),
        ('{"method": "ngram", "num_speculative_tokens": 3}', SpeculativeSpec(3, 5, 5)),
        ('{"num_speculative_tokens": 3, "prompt_lookup_max": 4}', SpeculativeSpec(3, 4, 4)),
        ('{"num_speculative_tokens": 3, "prompt_lookup_min": 2}', SpeculativeSpec(3, 2, 2)),
        ('{"num_speculative_tokens": 1, "prompt_lookup_max": 4, "prompt_lookup_min": 1}', SpeculativeSpec(1, 4, 1)),
    ],
)
def test_ngrams_are_looked_up_within_these_sizes(text: str | None, spec: SpeculativeSpec | None):
    assert read_speculative_config(text) == spec


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ngram", "malformed"),
        ("[]", "object"),
        ("{}", "num_speculative_tokens"),
        ('{"num_speculative_tokens": 0}', "between 1 and 64, not 0"),
        ('{"num_speculative_tokens": 65}', "between 1 and 64, not 65"),
        ('{"num_speculative_tokens": 2, "prompt_lookup_min": 0}', "they are 0 and 0"),
        ('{"num_speculative_tokens": 2, "prompt_lookup_min": 4, "prompt_lookup_max": 3}', "they are 4 and 3"),
        ('{"num_speculative_tokens": 2, "prompt_lookup_max": 65}', "65"),
        ('{"num_speculative_tokens": 2, "method": "eagle"}', "'eagle' is not served"),
        ('{"num_speculative_tokens": 2, "method": "draft_model"}', "needs a model"),
        ('{"num_speculative_tokens": 2, "method": "draft_model", "model": ""}', "needs a model"),
        ('{"num_speculative_tokens": 2, "method": "ngram", "model": "small"}', "'ngram' has no model"),
        ('{"num_speculative_tokens": 2, "model": "small", "prompt_lookup_max": 4}', "for method 'ngram'"),
        ('{"num_speculative_tokens": 0, "model": "small"}', "between 1 and 64, not 0"),
        ('{"num_speculative_tokens": 2, "surprise": 1}', "surprise"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(text: str, reason: str):
    with pytest.raises(BadRequestError, match=reason):
        Settings(speculative_config=text)


def test_the_engine_is_told():
    settings = Settings(speculative_config='{"num_speculative_tokens": 2}')
    assert settings.house(Path("/m")).engine.speculative == SpeculativeSpec(2, 5, 5)


@pytest.mark.parametrize(
    "text",
    [
        '{"num_speculative_tokens": 3, "method": "draft_model", "model": "small"}',
        '{"num_speculative_tokens": 3, "model": "small"}',
    ],
)
def test_a_draft_model_is_one_that_is_named(text: str):
    settings = Settings(speculative_config=text)
    assert settings.speculative == DraftModelSpec(3, "small")
    assert settings.house(Path("/m"), Path("/d")).engine.speculative == DraftModelSpec(3, "/d")


@pytest.fixture
def served(tmp_path: Path) -> Path:
    return write_dummy_checkpoint(tmp_path / "served")


def drafting(draft: Path) -> Settings:
    config = {"num_speculative_tokens": 3, "model": str(draft)}
    return Settings(load_format="dummy", speculative_config=msgspec.json.encode(config).decode())


def test_a_draft_model_is_found_as_the_model_is(served: Path, tmp_path: Path):
    draft = write_dummy_checkpoint(tmp_path / "draft")
    settings = drafting(draft)
    checkpoint = fetch(str(served), settings)
    assert (checkpoint.directory, checkpoint.draft) == (served, draft)
    assert checked(settings, checkpoint).directory == served
    with pytest.raises(CheckpointError, match="no such file or directory"):
        fetch(str(served), drafting(tmp_path / "missing"))


def test_a_draft_model_with_another_tokeniser_is_refused(served: Path, tmp_path: Path):
    draft = write_dummy_checkpoint(tmp_path / "draft")
    tokenizer = Tokenizer.from_file(str(draft / "tokenizer.json"))
    tokenizer.add_tokens(["surplus"])
    tokenizer.save(str(draft / "tokenizer.json"))
    settings = drafting(draft)
    with pytest.raises(CheckpointError, match=r"the draft model draft has a tokeniser of \d+ tokens, and served one"):
        checked(settings, fetch(str(served), settings))


def test_a_draft_model_without_weights_is_refused_before_anything_starts(served: Path, tmp_path: Path):
    settings = Settings(speculative_config='{"num_speculative_tokens": 3, "model": "draft"}')
    draft = write_dummy_checkpoint(tmp_path / "draft")
    with pytest.raises(CheckpointError, match="no weights"):
        check_draft(settings, describe(served), draft)
