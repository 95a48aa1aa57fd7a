"""What an answer's last bytes say of its prompt."""

from __future__ import annotations

from app.proxy.usage_tail import MOST_BYTES, UsageTail

TOLD = b'{"prompt_tokens_details": {"cached_tokens": %d}}\n\n'


def tail(*pieces: bytes) -> UsageTail:
    found = UsageTail()
    for piece in pieces:
        found.take(piece)
    return found


def test_the_last_usage_counts_however_it_came_in_pieces() -> None:
    told = TOLD % 16 + TOLD % 0 + TOLD % 320
    for size in (1, 7, 50, len(told)):
        pieces = [told[start : start + size] for start in range(0, len(told), size)]
        assert tail(*pieces).num_cached_tokens() == 320


def test_a_long_answer_is_not_kept_and_its_end_is() -> None:
    found = tail(TOLD % 5, *[b"x" * 1000] * 20)
    assert found.num_cached_tokens() is None
    found.take(TOLD % 16)
    assert found.num_cached_tokens() == 16
    assert tail(b"x" * 10 * MOST_BYTES + TOLD % 3).num_cached_tokens() == 3


def test_what_is_told_otherwise_says_nothing() -> None:
    for told in (b"", b'"prompt_tokens_details": null', b'"cached_tokens": 3', TOLD.replace(b'"', b'\\"') % 3):
        assert tail(told).num_cached_tokens() is None
