"""Where each token of an answer stands: in the header of a message or in its body. Headers are read by openai-harmony.

Pure. Used by app/harmony/reader.py, which has the text of the same tokens.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence

from attrs import frozen
from openai_harmony import HarmonyEncoding, HarmonyError, Role, StreamableParser

from app.dialects.harmony import CHANNEL_NAME, MAX_HEADER, may_be_header
from app.harmony.byte_level import token_bytes
from app.harmony.marks import Marks
from app.harmony.vocabulary import NUM_TOKENS
from app.tokenizer import Tokenizer

_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_A_MARK = "<|"


@frozen
class Opened:
    """A message begins. Without a channel, it is the answer."""

    channel: str | None = None
    recipient: str | None = None


@frozen
class Closed:
    """The model has ended the message."""


@frozen
class Told:
    """So many characters of the message's body."""

    num_characters: int


@frozen
class Skipped:
    """So many characters that belong to no message."""

    num_characters: int


Event = Opened | Closed | Told | Skipped


class TokenPlaces:
    """Of one choice. Each message's header goes to a parser of its own: so what is wrong with one is over with it, and
    a message that begins inside another one, for which the library has no place, ends that."""

    def __init__(
        self,
        encoding: HarmonyEncoding,
        marks: Marks,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        *,
        spells_control_tokens: bool,
    ) -> None:
        """`prompt`: its tokens from the last <|start|> on, which the answer continues. `spells_control_tokens`: the
        text shows them."""
        self._encoding = encoding
        self._marks = marks
        self._tokenizer = tokenizer
        self._spells = spells_control_tokens
        self._parser = StreamableParser(encoding, Role.ASSISTANT)
        self._header = ""
        """With its control tokens spelled."""
        self._held: list[Told | Skipped] = []
        """What the header's tokens are in the text, in case that they are no header."""
        self._pending = b""
        """Of an incomplete character."""
        self.message: Opened | None = None
        """In whose body the next token stands."""
        for token_id in prompt:
            self.process(token_id)
        self._held = []

    def process(self, token_id: int) -> list[Event]:
        """What the next token means. The text of a header is told of when it is known to be one, or none."""
        token = self._tokenizer.token(token_id)
        if token not in self._tokenizer.special_tokens:
            data = token_bytes(self._tokenizer, token_id) if token_id < NUM_TOKENS else token.encode()
            return list(self._text(token_id, self._decoded(data)))
        if token_id not in self._marks.all:
            return list(self._text(token_id, token if self._spells else ""))
        return list(self._mark(token_id, token))

    def end(self) -> list[Event]:
        """There are no more tokens: what was held back."""
        rest = Told(len(self._decoded(b"", final=True)))
        if self.message is not None:
            return [rest]
        self._held.append(rest)
        if _A_MARK in self._header or self._header.strip() in ("", "assistant"):
            return self._skipped()
        return self._no_header()

    def _decoded(self, data: bytes, *, final: bool = False) -> str:
        """As the output handler decodes it, so that both count the same characters."""
        text, num_taken = codecs.utf_8_decode(self._pending + data, "replace", final)
        self._pending = (self._pending + data)[num_taken:]
        return text

    def _text(self, token_id: int, text: str) -> Iterator[Event]:
        told = Told(len(text))
        if self.message is not None:
            yield told
            return
        self._held.append(told)
        self._header += text
        self._read(token_id)
        if len(self._header) > MAX_HEADER or not (_A_MARK in self._header or may_be_header(self._header)):
            yield from self._no_header()

    def _mark(self, token_id: int, token: str) -> Iterator[Event]:
        marks = self._marks
        skipped = Skipped(len(token) if self._spells else 0)
        in_header = self.message is None
        if in_header and token_id in (marks.channel, marks.constrain):
            self._held.append(skipped)
            self._header += token
            self._read(token_id)
            return
        yield from self._skipped()
        yield skipped
        if token_id == marks.message and in_header:
            self.message = self._opened()
            yield self.message
        elif token_id not in (marks.message, marks.constrain):
            if not in_header:
                yield Closed()
            self._begin(token_id, token)

    def _begin(self, token_id: int, token: str) -> None:
        """Another message, with a mark that is part of it or ends the last one."""
        self.message = None
        is_channel = token_id == self._marks.channel
        self._header = token if is_channel else ""
        self._parser = StreamableParser(self._encoding, Role.ASSISTANT if is_channel else None)
        if token_id not in self._marks.ends:
            self._read(token_id)

    def _opened(self) -> Opened:
        """By the library; where it makes nothing of the header, by what it looks like."""
        if self._read(self._marks.message):
            return Opened(self._parser.current_channel, self._parser.current_recipient)
        channel, recipient = CHANNEL_NAME.search(self._header), _RECIPIENT.search(self._header)
        return Opened(None if channel is None else channel[1], None if recipient is None else recipient[1])

    def _no_header(self) -> list[Event]:
        """What was taken for one is an answer."""
        held, self._held = self._held, []
        self.message = Opened()
        return [self.message, *held]

    def _skipped(self) -> list[Event]:
        """It was a header, or nothing at all."""
        held, self._held = self._held, []
        return [Skipped(each.num_characters) for each in held]

    def _read(self, token_id: int) -> bool:
        """Whether the library has a place for it."""
        try:
            self._parser.process(token_id)
        except HarmonyError:
            return False
        return True
