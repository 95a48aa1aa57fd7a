"""--speculative-config is vLLM's JSON, and what cannot be served of it is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.settings import Settings
from app.speculative_config import read_speculative_config
from protocol.errors import BadRequestError
from protocol.spec import SpeculativeSpec


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
        ('{"num_speculative_tokens": 2, "method": "draft_model", "model": "small"}', "'small' is not served"),
        ('{"num_speculative_tokens": 2, "surprise": 1}', "surprise"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(text: str, reason: str):
    with pytest.raises(BadRequestError, match=reason):
        Settings(speculative_config=text)


def test_the_engine_is_told():
    settings = Settings(speculative_config='{"num_speculative_tokens": 2}')
    assert settings.house(Path("/m")).engine.speculative == SpeculativeSpec(2, 5, 5)
