"""What a typed line is taken for."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from app.commands.chat_input import ReadLine, read_text
from app.commands.chat_line import HELP, WORDS, Mistake, Order, Say, read_line
from app.commands.sampling_flags import NAMES, ChatSamplingFlags, read_setting
from protocol.errors import BadRequestError


def typed(*lines: str) -> ReadLine:
    left: Iterator[str] = iter(lines)
    return lambda _: next(left)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("hello", Say("hello")),
        ("  ", Say("")),
        (" /etc/hosts has what?", Say("/etc/hosts has what?")),
        ("/help", Order("/help")),
        ("/exit", Order("/quit")),
        ("/system  Be brief. ", Order("/system", "Be brief.")),
        ("/set temperature 0.7", Order("/set", "temperature 0.7")),
        ("/a\nb", Say("/a\nb")),
    ],
)
def test_a_line_is_for_the_model_or_for_us(text: str, meaning: object) -> None:
    assert read_line(text) == meaning


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/hlep", "did you mean /help?"),
        ("/xyzzy", "/help lists commands"),
        ("/temperature hot", "did you mean /set temperature hot?"),
        ("/max-tokens", "did you mean /set max_tokens VALUE?"),
        ("/save", "the name of a file"),
        ("/clear all", "takes nothing"),
    ],
)
def test_a_wrong_command_is_told_what_would_do(text: str, said: str) -> None:
    meaning = read_line(text)
    assert isinstance(meaning, Mistake)
    assert said in meaning.sentence


def test_the_help_tells_every_command() -> None:
    assert all(f"{word} " in HELP for word in WORDS)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("one",), "one"),
        (("one \\", "two\\", "three"), "one \ntwo\nthree"),
        (('"""', "/quit", "", "b", '"""'), " /quit\n\nb"),
        (('"""a', 'b"""'), " a\nb"),
        (('"""a"""',), " a"),
    ],
)
def test_several_lines_can_be_one_text(lines: tuple[str, ...], text: str) -> None:
    assert read_text(typed(*lines)) == text


def test_settings_are_read_as_their_kind() -> None:
    assert read_setting("temperature", "0.7") == ("temperature", 0.7)
    assert read_setting("--max-tokens", "20") == ("max_tokens", 20)
    assert read_setting("seed", "default") == ("seed", None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("temprature", "1", "did you mean temperature?"),
        ("x", "1", "there are temperature"),
        ("top_k", "0.5", "whole number"),
        ("temperature", "nan", "'nan'"),
        ("temperature", "", "a number"),
    ],
)
def test_a_wrong_setting_is_told_what_would_do(name: str, text: str, said: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_setting(name, text)
    assert said in caught.value.message


def test_what_can_be_set_are_the_flags() -> None:
    assert {field.name for field in attrs.fields(ChatSamplingFlags)} == set(NAMES)
    assert ChatSamplingFlags(seed=3, temperature=0.0).fields() == {"seed": 3, "temperature": 0.0}
