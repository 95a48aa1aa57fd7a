from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actors.output.stopping import StopMatcher

stops = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4)
chunks = st.lists(st.tuples(st.text("abc", max_size=6), st.booleans()), max_size=12)


def run(stop_strings, pieces, *, include=False):
    """What each piece releases, the stop string, and what the flush gives if there was none."""
    matcher = StopMatcher(stop_strings, include_stop_str_in_output=include)
    released = []
    for text, armed in pieces:
        out, stop = matcher.feed(text, armed=armed)
        released.append(out)
        if stop is not None:
            return released, stop
    return [*released, matcher.flush()], None


def first_match(stop_strings, pieces):
    """By trying everything: the text up to and including the first stop string completed while armed, and that."""
    text = ""
    for piece, armed in pieces:
        for character in piece:
            text += character
            for stop in stop_strings:
                if armed and text.endswith(stop):
                    return text, stop
    return text, None


def armed(*pieces):
    return [(piece, True) for piece in pieces]


@given(stops, chunks, st.booleans())
def test_the_result_is_that_of_looking_at_the_whole_text(stop_strings, pieces, include):
    text, stop = first_match(stop_strings, pieces)
    released, found = run(stop_strings, pieces, include=include)
    assert found == stop
    assert "".join(released) == (text if stop is None or include else text.removesuffix(stop))


@given(stops, chunks)
def test_only_a_possible_beginning_of_a_stop_string_is_withheld(stop_strings, pieces):
    released, stop = run(stop_strings, pieces)
    text = ""
    for count, (piece, _) in enumerate(pieces[: len(released) - 1], start=1):
        text += piece
        possible = [
            length for s in stop_strings for length in range(1, len(s)) if text.endswith(s[:length]) and length < len(s)
        ]
        if stop is None:
            assert len(text) - len("".join(released[:count])) == max(possible, default=0)


def test_a_stop_string_is_found_across_pieces():
    assert run(["END"], armed("so E", "N", "D and on")) == (["so ", "", ""], "END")


def test_the_stop_string_is_included_on_demand_and_then_nothing_is_withheld():
    assert run(["END"], armed("so E", "N", "D and on"), include=True) == (["so E", "N", "D"], "END")


def test_a_beginning_that_comes_to_nothing_is_released():
    assert run(["END"], armed("so E", "NT")) == (["so ", "ENT", ""], None)


def test_a_beginning_at_the_end_of_the_text_is_released():
    assert run(["END"], armed("so EN")) == (["so ", "EN"], None)


def test_the_string_that_is_complete_first_wins():
    assert run(["abcd", "bc"], armed("xabcd")) == (["xa"], "bc")


def test_of_two_that_end_together_the_first_of_the_list_wins():
    assert run(["bc", "abc"], armed("xabc")) == (["xa"], "bc")
    assert run(["abc", "bc"], armed("xabc")) == (["x"], "abc")


def test_a_match_that_does_not_count_yet_does_not_hide_a_later_one():
    assert run(["aa"], [("aa", False), ("a", True)]) == (["a", ""], "aa")


def test_matching_is_linear_where_naive_matching_is_quadratic():
    stop = "a" * 20_000 + "b"
    matcher = StopMatcher([stop])
    out = [matcher.feed("a" * 5)[0] for _ in range(20_000)]
    assert sum(map(len, out)) == 5 * 20_000 - 20_000
    assert matcher.feed("b") == ("", stop)
