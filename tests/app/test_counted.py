"""Numbers of things are told as people write them."""

from __future__ import annotations

from app.counted import counted


def test_one_is_no_plural():
    assert [counted(number, "request") for number in (0, 1, 2)] == ["0 requests", "1 request", "2 requests"]
