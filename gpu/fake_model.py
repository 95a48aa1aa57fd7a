"""The dummy runner's model: a probability distribution over the vocabulary that is a hash of all tokens before.

A few candidates get hashed logits and every other token gets the same low one, so that nothing costs as much as the
vocabulary is large. Candidates are words of the checkpoint's own tokeniser, so that the text looks like text.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import msgspec

from protocol.errors import CheckpointError
from protocol.lora import NO_LORA, LoraId

NUM_CANDIDATES = 24
CANDIDATE_LOGITS = 8.0
"""Candidates' logits are spread evenly from 0 to this."""
EOS_LOGIT = 9.0
EOS_EVERY = 40
"""EOS is by far the likeliest after one of so many contexts, and an unlikely candidate after the others."""
FLOOR_LOGIT = -10.0
"""Of every token that is no candidate."""
MIN_WORDS = 8
CLOSING = ('"', "}", "]", '"}', '"]', "}}")

_MASK = (1 << 64) - 1
_FIRST_STATE = 0x243F6A8885A308D3
_EOS_SALT = 0x13198A2E03707344


def mix(state: int, value: int) -> int:
    """A 64-bit hash of both: the finaliser of splitmix64 over their combination."""
    z = (state + (value + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def unit(bits: int) -> float:
    """64 random bits as a float in [0, 1)."""
    return (bits >> 11) * 2.0**-53


@final
class FakeLogits:
    """The distribution after one context, whose hash is `state`. `candidates` maps token ids to logits."""

    def __init__(self, state: int, candidates: dict[int, float], vocab_size: int) -> None:
        self.state = state
        self.candidates = candidates
        self.vocab_size = vocab_size
        num_others = vocab_size - len(candidates)
        mass = math.fsum(math.exp(logit) for logit in candidates.values()) + num_others * math.exp(FLOOR_LOGIT)
        self._log_mass = math.log(mass)

    def logprob(self, token_id: int) -> float:
        return self.candidates.get(token_id, FLOOR_LOGIT) - self._log_mass

    def rank(self, token_id: int) -> int:
        """From 1; equal logits are ranked by token id."""
        logit = self.candidates.get(token_id)
        if logit is None:
            num_candidates_below = sum(candidate < token_id for candidate in self.candidates)
            return 1 + len(self.candidates) + token_id - num_candidates_below
        return 1 + sum((-other, t) < (-logit, token_id) for t, other in self.candidates.items())

    def best(self, count: int) -> list[int]:
        """The `count` likeliest tokens, the likeliest first."""
        best = heapq.nsmallest(count, self.candidates, key=lambda t: (-self.candidates[t], t))
        others = (t for t in range(self.vocab_size) if t not in self.candidates)
        return best + [t for t, _ in zip(others, range(count - len(best)), strict=False)]


@final
class FakeModel:
    """What a dummy checkpoint computes. A state stands for a KV entry: the hash of a token and all before it."""

    def __init__(self, vocab_size: int, eos_token_ids: list[int], words: list[int], closing: list[int]) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self._words = words
        self.closing = closing
        """Tokens that end something in JSON."""

    def first_state(self, lora_id: LoraId = NO_LORA) -> int:
        """What stands before the first token: each adapter makes another model of it."""
        return _FIRST_STATE if lora_id == NO_LORA else mix(_FIRST_STATE, lora_id)

    def next_state(self, previous: int, token_id: int) -> int:
        """The state of a token after the state of the one before it."""
        return mix(previous, token_id)

    def logits(self, state: int) -> FakeLogits:
        """What comes after the token with this state."""
        candidates: dict[int, float] = {}
        for index in range(NUM_CANDIDATES):
            bits = mix(state, index)
            candidates[self._words[bits % len(self._words)]] = CANDIDATE_LOGITS * unit(mix(bits, 0))
        is_end = mix(state, _EOS_SALT) % EOS_EVERY == 0
        for token_id in self.eos_token_ids:
            candidates[token_id] = EOS_LOGIT if is_end and token_id == self.eos_token_ids[0] else 0.0
        return FakeLogits(state, candidates, self.vocab_size)


def read_fake_model(checkpoint: Path, config: dict[str, Any]) -> FakeModel:
    """The model for a checkpoint directory whose config.json is `config`. Raises CheckpointError."""
    vocab_size = config.get("vocab_size")
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise CheckpointError(f"{checkpoint}/config.json: vocab_size must be a number above 0, not {vocab_size!r}")
    eos = config.get("eos_token_id")
    eos_token_ids = [eos] if isinstance(eos, int) else list(eos or [])
    if any(not isinstance(t, int) or not 0 <= t < vocab_size for t in eos_token_ids):
        raise CheckpointError(f"{checkpoint}/config.json: eos_token_id {eos!r} is not inside 0 to {vocab_size - 1}")
    vocabulary = dict(_vocabulary(checkpoint / "tokenizer.json", vocab_size))
    words = sorted(token_id for token, token_id in vocabulary.items() if token[1:].isascii() and _word(token).isalpha())
    if len(words) < MIN_WORDS:
        words = [token_id for token_id in range(vocab_size) if token_id not in eos_token_ids] or [0]
    closing = [vocabulary[token] for token in CLOSING if token in vocabulary]
    return FakeModel(vocab_size, eos_token_ids, words, closing)


def read_json(path: Path) -> dict[str, Any]:
    """Raises CheckpointError if the file is missing or no JSON object."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _vocabulary(path: Path, vocab_size: int) -> Iterator[tuple[str, int]]:
    """The computable tokens of a tokenizer.json's model: a mapping, or (for Unigram) a list of pieces and scores."""
    if not path.exists():
        return
    vocabulary = read_json(path).get("model", {}).get("vocab", {})
    entries = vocabulary.items() if isinstance(vocabulary, dict) else ((e[0], i) for i, e in enumerate(vocabulary))
    yield from ((token, token_id) for token, token_id in entries if token_id < vocab_size)


def _word(token: str) -> str:
    """Without the mark of a space before it: a byte-level tokeniser's or SentencePiece's."""
    word = token.removeprefix("Ġ").removeprefix("▁")
    return word if word.isascii() else ""
