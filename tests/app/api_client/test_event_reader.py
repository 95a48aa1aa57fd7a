"""Events out of bytes, however these are cut."""

from __future__ import annotations

import pytest

from app.api_client.event_reader import MOST_HELD, EventReader, EventTooLongError

STREAM = b': comment\r\n\r\ndata: {"a": 1}\r\n\r\nevent: x\ndata:2\ndata: 3\n\ndata: [DONE]\n\ndata: late\n\n'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_come_whole_wherever_the_bytes_are_cut(size: int) -> None:
    reader, events = EventReader(), []
    for at in range(0, len(STREAM), size):
        events += reader.take(STREAM[at : at + size])
        if reader.is_done:
            break
    assert events == [b'{"a": 1}', b"2\n3"]
    assert reader.is_done


def test_what_has_not_ended_is_no_event_yet() -> None:
    reader = EventReader()
    assert reader.take(b"data: 1\n") == []
    assert reader.take(b"\n") == [b"1"]


def test_an_event_without_end_is_given_up() -> None:
    reader = EventReader()
    with pytest.raises(EventTooLongError):
        reader.take(b"data: " + b"x" * MOST_HELD)
