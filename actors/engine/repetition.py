"""Whether an answer has begun to say the same over and over. Used by actors/engine/finish.py after each token."""

from __future__ import annotations

from protocol.sampling import RepetitionDetection


def repeats_itself(token_ids: list[int], wanted: RepetitionDetection) -> bool:
    """Whether the last tokens are one piece, of a size that is looked for, `min_count` times."""
    return any(
        _is_repeated(token_ids, size, wanted.min_count)
        for size in range(wanted.min_pattern_size, min(wanted.max_pattern_size, len(token_ids) // wanted.min_count) + 1)
    )


def _is_repeated(token_ids: list[int], size: int, count: int) -> bool:
    if token_ids[-1] != token_ids[-1 - size]:
        return False  # most sizes end here, without a slice
    # Repeated is what equals itself, moved by its size.
    return token_ids[-size * count : -size] == token_ids[-size * (count - 1) :]
