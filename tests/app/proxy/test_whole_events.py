"""Events go on whole and unchanged, however they come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.proxy.whole_events import MOST_HELD_BYTES, WholeEvents


@given(st.lists(st.sampled_from([b"data: x\n", b"\n", b"\r\n", b"\n\n", b": c", b"\r\n\r\n", b"\r"]), max_size=30))
def test_not_a_byte_is_changed_and_each_event_goes_on_when_it_is_over(pieces) -> None:
    events, whole, gone = WholeEvents(), b"", b""
    for piece in pieces:
        whole += piece
        gone += events.take(piece)
        assert whole.startswith(gone)
        left = whole[len(gone) :]
        assert b"\n\n" not in left
        assert b"\n\r\n" not in left
        assert not gone or gone.endswith((b"\n\n", b"\n\r\n"))
    assert gone + events.rest() == whole


def test_what_is_longer_than_an_event_may_be_goes_on_and_is_closed_when_it_breaks() -> None:
    events = WholeEvents()
    assert events.take(b"data: a\n\ndata: ") == b"data: a\n\n"
    assert events.broken() == b""
    long = b"x" * (MOST_HELD_BYTES + 1)
    assert events.take(long) == long
    assert events.broken() == b"\n\n"
    events.take(long)
    assert events.take(b"\n\n") == b"\n\n"
    assert events.broken() == b""
