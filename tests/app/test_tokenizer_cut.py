"""A text that is cut keeps what the tokeniser adds at its ends, and only the part that may be kept is read."""

from __future__ import annotations

import pytest
from tokenizers import processors

from app.tokenizer import Cut, Tokenizer
from tests.helpers.dummy_checkpoint import ENDOFTEXT, IM_START, dummy_tokenizer


def framed() -> Tokenizer:
    """One that writes <|im_start|> before and <|endoftext|> behind each text."""
    tokenizers = [dummy_tokenizer(), dummy_tokenizer()]
    ids = [(token, tokenizers[0].token_to_id(token)) for token in (IM_START, ENDOFTEXT)]
    for tokenizer in tokenizers:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{IM_START} $A {ENDOFTEXT}", special_tokens=ids
        )
    return Tokenizer(*tokenizers)


@pytest.mark.parametrize("text", ["harbour boats mist " * 20, "船船船船船船船船", "a"])
@pytest.mark.parametrize("most", [1, 2, 3, 7, 500])
async def test_what_is_added_stays(text: str, most: int):
    tokenizer = framed()
    first, *plain, last = tokenizer.encode(text)
    assert plain == tokenizer.encode(text, add_special_tokens=False)
    room = max(0, most - 2)
    for side, kept in (("right", plain[:room]), ("left", plain[len(plain) - min(room, len(plain)) :])):
        (found,) = await tokenizer.encode_all([text], cut=Cut(most, side))
        assert found == [first, *kept, last][:most]
        (bare,) = await tokenizer.encode_all([text], add_special_tokens=False, cut=Cut(most, side))
        assert bare == (plain[:most] if side == "right" else plain[-most:])


async def test_a_long_text_is_read_as_far_as_it_may_be_kept():
    tokenizer = framed()
    assert len(await tokenizer.encode_all(["boats " * 2_000_000], cut=Cut(5, "right"))) == 1
