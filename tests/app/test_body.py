"""Bodies are bounded before they are decoded."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.body import decode_body, has_more, nests_within
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


def marks(value: object) -> tuple[int, int]:
    """Colons and commas that separate its parts."""
    parts = list(value.values() if isinstance(value, dict) else value) if isinstance(value, (dict, list)) else []
    inner = [marks(part) for part in parts]
    own = len(parts) if isinstance(value, dict) else 0
    return own + sum(colons for colons, _ in inner), max(len(parts) - 1, 0) + sum(commas for _, commas in inner)


@given(JSON, st.integers(0, 6))
def test_keys_and_values_are_counted_exactly_whatever_the_strings_hold(value: object, limit: int) -> None:
    colons, commas = marks(value)
    body = json.dumps([value, ":,"]).encode()
    assert has_more(body, b":", limit) == (colons > limit)
    assert has_more(body, b",", limit) == (commas + 1 > limit)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (json.dumps({str(i): 1 for i in range(200_001)}), "more than 200000 keys"),
        ("[" + "5," * 2**20 + "5,5]", "more than 1048576 values"),
    ],
)
def test_more_than_can_be_decoded_in_a_moment_is_refused(body: str, text: str) -> None:
    with pytest.raises(BadRequestError, match=text):
        decode_body(body.encode(), msgspec.json.Decoder(), 100)


def test_commas_and_colons_of_a_long_text_are_no_values() -> None:
    assert decode_body(json.dumps("1:2, " * 2**20).encode(), msgspec.json.Decoder(str), 100)[:4] == "1:2,"


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
