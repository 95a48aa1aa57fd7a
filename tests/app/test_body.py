"""Bodies are bounded before they are decoded."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.body import decode_body, nests_within
from protocol.errors import BadRequestError

JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=6) | st.sampled_from(['[{"', '\\"]}', "\\", '"', "[[[["]),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=3), children, max_size=4),
    max_leaves=20,
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(JSON, st.integers(0, 6))
def test_depth_is_judged_exactly_whatever_the_strings_hold(value: object, limit: int) -> None:
    assert nests_within(json.dumps(value).encode(), limit) == (depth(value) <= limit)


@given(st.binary(max_size=60), st.integers(0, 5))
def test_any_bytes_are_judged_without_an_error(data: bytes, limit: int) -> None:
    nests_within(data, limit)


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * 1_000_000,
        b'"' * 1_000_001,
        b"[" * 2_000_000,
        b"[]" * 1_000_000,
        (b"[" * 100 + b"]" * 100) * 5_000,
        b'["\\' * 500_000,
    ],
    ids=["escapes", "quotes", "open", "pairs", "deep pairs", "mixed"],
)
def test_two_megabytes_of_anything_are_judged_quickly(body: bytes) -> None:
    began = time.perf_counter()
    nests_within(body + b"[" * 101, 100)
    assert time.perf_counter() - began < 3.0


class Point(msgspec.Struct):
    x: int
    inner: list[int] = []


def test_the_field_is_named_wherever_it_is() -> None:
    decoder = msgspec.json.Decoder(Point)
    for body, param in (
        (b'{"x": "1"}', "x"),
        (b"{}", "x"),
        (b'{"x": 1, "inner": [1, "2"]}', "inner[1]"),
        (b"[]", None),
    ):
        with pytest.raises(BadRequestError) as caught:
            decode_body(body, decoder, 100)
        assert caught.value.param == param
        assert (param or "body") in caught.value.message
