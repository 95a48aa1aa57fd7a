"""Token ids to text, a few at a time, never splitting a character. One per request, made by the output processor.

What has been emitted after some tokens depends on these tokens only, not on how they were grouped; it is always a
prefix of what will have been emitted later; and everything together is the decoding of prompt and output in one go,
less the decoding of the prompt. That makes it possible to go on in another process from the token ids alone.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from actors.output.vocabulary import Vocabulary
from actors.output.windowed_detokenizer import WindowedDetokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_INCOMPLETE_BYTES = 3


class Detokenizer(Protocol):
    """One request's text."""

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these next output tokens complete. Raises ValueError for a negative id."""
        ...

    def flush(self) -> str:
        """The output is over: what was withheld, an incomplete character as U+FFFD."""
        ...


def open_detokenizer(
    vocabulary: Vocabulary,
    prompt_token_ids: Sequence[int],
    *,
    skip_special_tokens: bool = True,
    spaces_between_special_tokens: bool = True,
) -> Detokenizer:
    """The exact one if the tokenizer's decoder works on bytes token by token, else the general one.

    `spaces_between_special_tokens` matters only to decoders that put spaces between tokens at all, that is the latter.
    """
    if vocabulary.rule is not None:
        return ByteDetokenizer(vocabulary, prompt_token_ids, skip_special_tokens=skip_special_tokens)
    return WindowedDetokenizer(
        vocabulary,
        prompt_token_ids,
        skip_special_tokens=skip_special_tokens,
        spaces_between_special_tokens=spaces_between_special_tokens,
    )


class ByteDetokenizer:
    """For byte-level and byte-fallback vocabularies: joins the tokens' bytes and decodes them as UTF-8.

    Invalid bytes become U+FFFD as the Unicode standard recommends (one for each maximal part of a character), as soon
    as it is certain that no further byte makes them valid. (For a run of byte tokens with a bad byte `tokenizers` gives
    U+FFFD for each byte of the run, also for the good characters in it; text once sent cannot follow that.)

    A character that the prompt began and the output completes belongs to the output; one that the prompt began and that
    is never completed belongs to the prompt, and is not emitted.
    """

    def __init__(self, vocabulary: Vocabulary, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._vocabulary = vocabulary
        self._hidden = vocabulary.special_ids if skip_special_tokens else frozenset()
        rule = vocabulary.rule
        assert rule is not None
        self._spaces_to_drop = rule.leading_spaces
        self._drops_in_first_token = bool(rule.first_token_drops)
        self._read_beginning(prompt_token_ids)
        self._pending = self._incomplete_tail(prompt_token_ids)
        self._prompt_replacements = len(self._pending.decode("utf-8", "replace"))

    def feed(self, token_ids: Iterable[int]) -> str:
        if self._drops_in_first_token or self._spaces_to_drop:
            new = self._bytes_at_beginning(token_ids)
        else:
            new = self._bytes(token_ids)
        return self._decode(self._pending + new, final=False) if new else ""

    def flush(self) -> str:
        return self._decode(self._pending, final=True) if self._pending else ""

    def _decode(self, data: bytes, *, final: bool) -> str:
        text, consumed = codecs.utf_8_decode(data, "replace", final)
        self._pending = data[consumed:]
        if self._prompt_replacements and consumed:
            if text.startswith(_REPLACEMENT) and not data.startswith(_REPLACEMENT.encode()):
                text = text[self._prompt_replacements :]
            self._prompt_replacements = 0
        return text

    def _bytes(self, token_ids: Iterable[int]) -> bytes:
        table, hidden = self._vocabulary.table, self._hidden
        size = len(table)
        parts = []
        for token_id in token_ids:
            if 0 <= token_id < size:
                if token_id not in hidden:
                    parts.append(table[token_id])
            elif token_id < 0:
                raise ValueError(f"token id {token_id} is negative")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _bytes_at_beginning(self, token_ids: Iterable[int]) -> bytes:
        """As _bytes, while the text may still be at its beginning, where some vocabularies drop a space."""
        parts = []
        for token_id in token_ids:
            if token_id in self._hidden:
                continue
            if self._drops_in_first_token:
                part = self._vocabulary.first_token_bytes(token_id)
                self._drops_in_first_token = token_id >= self._vocabulary.size
            else:
                part = self._vocabulary.token_bytes(token_id)
            while self._spaces_to_drop and part:
                if part.startswith(b" "):
                    part = part[1:]
                    self._spaces_to_drop -= 1
                else:
                    self._spaces_to_drop = 0
            parts.append(part)
        return b"".join(parts)

    def _read_beginning(self, prompt_token_ids: Sequence[int]) -> None:
        """Normally the prompt is the text's beginning: after its first visible token nothing is dropped any more."""
        for token_id in prompt_token_ids:
            if not (self._drops_in_first_token or self._spaces_to_drop):
                return
            self._bytes_at_beginning([token_id])

    def _incomplete_tail(self, prompt_token_ids: Sequence[int]) -> bytes:
        """The bytes of the incomplete character that the prompt ends in; mostly none."""
        tail = b""
        for token_id in reversed(prompt_token_ids):
            if len(tail) > _MAX_INCOMPLETE_BYTES:
                break
            tail = self._bytes([token_id]) + tail
        return tail[codecs.utf_8_decode(tail, "replace", False)[1] :]
