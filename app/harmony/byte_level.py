"""What tokens of a byte-level vocabulary stand for: one printable character for each byte. Used by app/harmony."""

from __future__ import annotations

from collections.abc import Mapping

from app.tokenizer import Tokenizer


def _byte_of() -> Mapping[str, int]:
    """Printable characters of Latin-1 stand for themselves, the other bytes for those from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


BYTE_OF = _byte_of()


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Of one of the vocabulary's own tokens; none for an id that has no token. Raises KeyError for a token that is not
    spelled so."""
    return bytes([BYTE_OF[character] for character in tokenizer.token(token_id)])
