"""Slow, plain tokenisers that share no code with the tokenizers library: what a fast one must agree with."""

from __future__ import annotations

import itertools

import regex


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def cut(text: str, patterns: list[str]) -> list[str]:
    """Each pattern cuts the pieces that the one before left; what it does not match stays as pieces."""
    pieces = [text]
    for pattern in patterns:
        following = []
        for piece in pieces:
            position = 0
            for match in regex.finditer(pattern, piece):
                following += [piece[position : match.start()], match.group()]
                position = match.end()
            following.append(piece[position:])
        pieces = [piece for piece in following if piece]
    return pieces


def merge(symbols: list[str], rank: dict[tuple[str, str], int]) -> list[str]:
    """Join the pair of the best rank, the leftmost first, until no pair has a rank."""
    symbols = list(symbols)
    while True:
        ranked = [(rank[pair], at) for at, pair in enumerate(itertools.pairwise(symbols)) if pair in rank]
        if not ranked:
            return symbols
        at = min(ranked)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def byte_level_encode(
    text: str, patterns: list[str], vocabulary: dict[str, int], merges: list[str], *, whole_pieces: bool
) -> list[int]:
    rank = {tuple(line.split(" ")): index for index, line in enumerate(merges)}
    letters = byte_alphabet()
    ids = []
    for piece in cut(text, patterns):
        symbols = [letters[byte] for byte in piece.encode()]
        if whole_pieces and "".join(symbols) in vocabulary:
            symbols = ["".join(symbols)]
        symbols = merge(symbols, rank)  # type: ignore[arg-type]
        ids += [vocabulary[symbol] for symbol in symbols if symbol in vocabulary]
    return ids


def score_encode(text: str, vocabulary: dict[str, int], scores: list[float]) -> list[int]:
    """SentencePiece's BPE: join the two neighbours that make the best-scored piece; what is no piece goes as bytes."""
    symbols = list(text.replace(" ", "\u2581"))
    while True:
        candidates = [
            (-scores[vocabulary[left + right]], at)
            for at, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in vocabulary
        ]
        if not candidates:
            break
        at = min(candidates)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids = []
    for symbol in symbols:
        ids += (
            [vocabulary[symbol]]
            if symbol in vocabulary
            else [vocabulary[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        )
    return ids
