"""Text to token ids and back, with the checkpoint's own tokeniser (the `tokenizers` library, no transformers).

Used by the routes for prompts, by app/render.py for chats, and by app/sampling.py for bad words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

import tokenizers
import trio
from attrs import frozen

from protocol.errors import BadRequestError, CheckpointError

_INLINE_CHARACTERS = 4_000
"""Texts up to this length are encoded on the spot (well under a millisecond); longer ones in a worker thread."""
_TEXT_OVERHEAD = 50
"""Characters that take as long as the call for one text itself."""


@frozen
class Cut:
    """How a text's tokens are cut."""

    most: int
    """At least 1."""
    side: Literal["left", "right"]
    """Which end goes."""


Whole = TypeVar("Whole", str, list[int])


def kept_part(whole: Whole, most: int, side: str | None) -> Whole:
    """At most so much of a text or of token ids, at least 1: the end of it, or the beginning with "right", which is the
    side that is cut."""
    return whole[:most] if side == "right" else whole[-most:]


class Tokenizer:
    """Immutable after construction, so that worker threads may share it."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, literal: tokenizers.Tokenizer) -> None:
        """`literal` is a second instance of the same tokeniser: it reads special tokens' spellings as plain text."""
        self._tokenizer = tokenizer
        self._literal = literal
        self._literal.encode_special_tokens = True
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        """One more than the highest token id."""
        self._longest_token = max(map(len, vocabulary), default=1)
        self.special_tokens = {
            token.content: token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special and token.content
        }
        """Spelling to token id, of the control tokens only."""
        spellings = sorted(self.special_tokens, key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, spellings)) + ")") if spellings else None
        self._limiter = trio.CapacityLimiter(2)

    @classmethod
    def from_checkpoint(cls, checkpoint: Path) -> Tokenizer:
        """Reads tokenizer.json. Raises CheckpointError."""
        path = checkpoint / "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
            return cls(tokenizers.Tokenizer.from_str(text), tokenizers.Tokenizer.from_str(text))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {error}") from error
        except Exception as error:  # the library raises plain Exception for what it cannot read
            raise CheckpointError(f"{path} is not a tokeniser that can be read: {error}") from error

    def find_special(self, text: str) -> list[str]:
        """The spellings of control tokens that occur in the text, each once, also where one is part of another."""
        return [spelling for spelling in self.special_tokens if spelling in text]

    def encode(self, text: str, *, add_special_tokens: bool = True, literal: bool = False) -> list[int]:
        """Token ids of a text. With `literal`, control tokens' spellings in it are plain text."""
        tokenizer = self._literal if literal else self._tokenizer
        # The batch call leaves the interpreter lock while it works, and is the faster one even for a single text.
        found: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return found

    def encode_parts(self, text: str, hidden: dict[str, str]) -> list[int]:
        """Like `encode` without added tokens, for a text in which the characters of `hidden` stand for spellings
        that must stay plain text. Each run between real control tokens is encoded in one go, so that its tokens merge
        as they do anywhere else.
        """
        ids: list[int] = []
        table = str.maketrans(hidden)
        for part in self._special.split(text) if self._special else [text]:
            if part in self.special_tokens:
                ids.append(self.special_tokens[part])
            elif part:
                ids += self.encode(part.translate(table), add_special_tokens=False, literal=True)
        return ids

    def max_characters(self, num_tokens: int) -> int:
        """The most characters that so many tokens stand for."""
        return num_tokens * self._longest_token

    def check_length(self, text: str, max_model_len: int) -> None:
        """Refuses, before any work, a text that cannot fit whatever its tokens are."""
        if len(text) > self.max_characters(max_model_len):
            raise BadRequestError(
                f"This model's maximum context length is {max_model_len} tokens; a text of {len(text)} characters has "
                f"more (no token stands for more than {self._longest_token} characters).",
                code="context_length_exceeded",
            )

    def encode_cut(self, text: str, cut: Cut, *, add_special_tokens: bool = True) -> list[int]:
        """Like `encode`, with no more tokens than `cut` says; those that are added at a text's ends stay."""
        characters = self.max_characters(cut.most + 1)  # no more is looked at than may be kept
        text = kept_part(text, characters, cut.side)
        encoding = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
        added = self._tokenizer.num_special_tokens_to_add(False) if add_special_tokens else 0
        encoding.truncate(max(0, cut.most - added), direction=cut.side)
        if add_special_tokens:
            encoding = self._tokenizer.post_process(encoding)
        found: list[int] = encoding.ids
        return found[: cut.most]

    async def encode_all(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, cut: Cut | None = None
    ) -> list[list[int]]:
        """`encode` (or `encode_cut`) of each, in a worker thread if there is much of it."""

        def encode() -> list[list[int]]:
            if cut is not None:
                return [self.encode_cut(text, cut, add_special_tokens=add_special_tokens) for text in texts]
            return [self.encode(text, add_special_tokens=add_special_tokens) for text in texts]

        if sum(map(len, texts)) + len(texts) * _TEXT_OVERHEAD <= _INLINE_CHARACTERS:
            return encode()
        return await trio.to_thread.run_sync(encode, limiter=self._limiter)

    def decode(self, token_ids: list[int]) -> str:
        """Text of token ids, all of which are below `vocab_size`, with control tokens spelled out."""
        return str(self._tokenizer.decode_batch([token_ids], skip_special_tokens=False)[0])

    async def decode_long(self, token_ids: list[int]) -> str:
        """`decode`, in a worker thread if there are many."""
        if len(token_ids) <= _INLINE_CHARACTERS:
            return self.decode(token_ids)
        return await trio.to_thread.run_sync(self.decode, token_ids, limiter=self._limiter)

    def token(self, token_id: int) -> str:
        """The token as the vocabulary spells it, "" for an id that has none."""
        return self._tokenizer.id_to_token(token_id) or ""

    def token_id(self, token: str) -> int | None:
        found = self._tokenizer.token_to_id(token)
        return found if found is None else int(found)
