"""Prompts of an exact number of tokens, no two of which begin alike, so that no prefix cache helps unless it should."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

NUM_WORDS = 1000


class Prompts:
    """Made of words that are one token each. The same seed gives the same prompts in the same order."""

    def __init__(self, checkpoint: Path, seed: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        self._random = random.Random(seed)
        self._words = sorted(self._single_tokens())
        if len(self._words) < NUM_WORDS // 2:
            raise ValueError(f"{checkpoint}: only {len(self._words)} words are single tokens")

    def make(self, num_tokens: int) -> str:
        """A new text of so many tokens, special tokens that the tokenizer adds included."""
        added = len(self._tokenizer.encode("").ids)
        text = "".join(self._random.choices(self._words, k=num_tokens - added))
        found = len(self._tokenizer.encode(text).ids)
        assert found == num_tokens, f"words merged: {found} tokens instead of {num_tokens}"
        return text

    def _single_tokens(self) -> Iterator[str]:
        candidates = sorted(
            word.removeprefix("Ġ").removeprefix("▁")
            for word in self._tokenizer.get_vocab()
            if word[:1] in "Ġ▁" and word[1:].isascii() and word[1:].isalpha() and word[1:].islower() and len(word) > 3
        )
        for word in random.Random(0).sample(candidates, min(NUM_WORDS, len(candidates))):
            if len(self._tokenizer.encode(f" {word}", add_special_tokens=False).ids) == 1:
                yield f" {word}"
