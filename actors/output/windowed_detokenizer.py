"""Incremental detokenising with any decoder of the `tokenizers` library, by decoding a sliding window of tokens.

For decoders that look at neighbours (WordPiece, "</w>" suffixes, none at all), which the exact way of
actors/output/detokenizer cannot do. Such a decoder may, in principle, change earlier text when a token is added; text
that was sent stays as it was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from actors.output.vocabulary import Vocabulary

_PROMPT_CONTEXT = 6
"""Tokens of the prompt that are decoded along with the first output, so that spaces come out right."""
_MAX_WITHHELD = 4
"""A character has at most four bytes: after so many tokens U+FFFD is what the text says."""


class WindowedDetokenizer:
    """Keeps the tokens emitted last as left context, and those that end in an incomplete character back."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._hidden = vocabulary.special_ids if skip_special_tokens else frozenset()
        self._spaces_between_added = spaces_between_special_tokens
        self._context: list[int] = []
        """Tokens whose text has been emitted, as far as it matters to what follows."""
        self._withheld: list[int] = []
        self._after_added = False
        visible = [token_id for token_id in prompt_token_ids[-4 * _PROMPT_CONTEXT :] if self._is_visible(token_id)]
        self._context = visible[-_PROMPT_CONTEXT:]
        self._after_added = bool(visible) and vocabulary.added_content(visible[-1]) is not None

    def feed(self, token_ids: Iterable[int]) -> str:
        return "".join([self._feed_one(token_id) for token_id in token_ids if self._is_visible(token_id)])

    def flush(self) -> str:
        return self._emit() if self._withheld else ""

    def _is_visible(self, token_id: int) -> bool:
        return token_id not in self._hidden and bool(self._vocabulary.token_bytes(token_id))

    def _feed_one(self, token_id: int) -> str:
        content = self._vocabulary.added_content(token_id)
        if content is not None and self._after_added and not self._spaces_between_added:
            text = self.flush() + content
            self._context = [token_id]
            return text
        self._after_added = content is not None
        self._withheld.append(token_id)
        window = self._vocabulary.decode(self._context + self._withheld)
        if window.endswith("\N{REPLACEMENT CHARACTER}") and len(self._withheld) < _MAX_WITHHELD:
            return ""
        return self._emit()

    def _emit(self) -> str:
        before = self._vocabulary.decode(self._context)
        after = self._vocabulary.decode(self._context + self._withheld)
        self._context = self._withheld
        self._withheld = []
        return after[len(before) :]
