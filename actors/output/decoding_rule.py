"""How one token's string becomes bytes of the text, read off the tokenizer's decoder. Used by actors/output/vocabulary.

Nearly every language model has one of two decoders, and both work on bytes, token by token: the GPT-2 alphabet, where
each character of a token stands for a byte, and SentencePiece's, where U+2581 stands for a space and <0xE2> for a byte.
For these the bytes are exact and independent of the neighbours, but for the very beginning of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def _byte_alphabet() -> dict[int, int]:
    """Code point of a character of the GPT-2 alphabet -> code point of the Latin-1 character with the byte's value.

    Printable Latin-1 characters stand for their own byte; the 68 others are numbered from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {0x100 + index: byte for index, byte in enumerate(others)}


_BYTE_ALPHABET = _byte_alphabet()
_ALPHABET_CHARACTERS = frozenset(map(chr, _BYTE_ALPHABET))


@dataclass(frozen=True, slots=True)
class ByteLevelRule:
    """The GPT-2 alphabet. A token with any other character (a template's marker, say) stands for itself."""

    leading_spaces: int = 0
    first_token_drops: str = ""

    def token_bytes(self, token: str, *, added: bool) -> bytes:
        """`added`: the token was added beside the model's vocabulary, so its string is meant literally."""
        if added or not _ALPHABET_CHARACTERS.issuperset(token):
            return token.encode()
        return token.translate(_BYTE_ALPHABET).encode("latin-1")


@dataclass(frozen=True, slots=True)
class PieceRule:
    """SentencePiece's: replacements inside each token, and byte tokens."""

    replacements: tuple[tuple[str, str], ...]
    byte_fallback: bool
    leading_spaces: int
    """Up to this many spaces are dropped from the beginning of the whole text."""
    first_token_drops: str
    """If not empty: this is dropped, instead of replaced, wherever it stands in the text's first token."""

    def token_bytes(self, token: str, *, added: bool) -> bytes:
        """Added tokens undergo the same replacements here (`tokenizers` does so, and vocabularies rely on it)."""
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.byte_fallback and (match := _BYTE_TOKEN.match(token)):
            return bytes([int(match[1], 16)])
        return token.encode()


DecodingRule = ByteLevelRule | PieceRule


def decoding_rule(decoder: bytes | None) -> DecodingRule | None:
    """From the JSON of the tokenizer's decoder. None: neither of the two, so only the library can apply it."""
    if decoder is None:
        return None
    stages = _stages(msgspec.json.decode(decoder, type=dict[str, Any]))
    if [stage["type"] for stage in stages] == ["ByteLevel"]:
        return ByteLevelRule()
    return _piece_rule(stages)


def _stages(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [stage for inner in decoder["decoders"] for stage in _stages(inner)]


def _piece_rule(stages: list[dict[str, Any]]) -> PieceRule | None:
    replacements: list[tuple[str, str]] = []
    byte_fallback = fused = False
    leading_spaces = 0
    first_token_drops = ""
    for stage in stages:
        match stage:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if not fused:
                replacements.append((old, new))
            case {"type": "ByteFallback"} if not fused:
                byte_fallback = True
            case {"type": "Metaspace", "replacement": str(old)} if not fused and not first_token_drops:
                replacements.append((old, " "))
                first_token_drops = "" if stage.get("prepend_scheme") == "never" else old
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0} if fused:
                leading_spaces += start
            case _:
                return None
    if not replacements and not byte_fallback:
        return None
    return PieceRule(tuple(replacements), byte_fallback, leading_spaces, first_token_drops)
