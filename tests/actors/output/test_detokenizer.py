from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from actors.output.detokenizer import open_detokenizer
from actors.output.vocabulary import Vocabulary
from tests.helpers.small_tokenizers import (
    FIRST_BYTE_ID,
    byte_level_tokenizer,
    metaspace_tokenizer,
    piece_tokenizer,
    wordpiece_tokenizer,
)

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TOKENIZERS = {
    "byte level": byte_level_tokenizer(),
    "piece": piece_tokenizer(),
    "metaspace": metaspace_tokenizer(),
    "wordpiece": wordpiece_tokenizer(),
}
VOCABULARIES = {kind: Vocabulary(tokenizer) for kind, tokenizer in TOKENIZERS.items()}
EXACT = ("byte level", "piece", "metaspace")

exact_kinds = st.sampled_from(EXACT)
token_ids = st.lists(st.integers(0, 530) | st.integers(0, 262), max_size=40)
byte_ids = st.lists(st.sampled_from([0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x8E, 0x41, 0xED, 0xA0, 0xC0]), max_size=12)


def texts(kind, prompt, chunks, **options):
    """What each chunk gives, and the flush at the end."""
    detokenizer = open_detokenizer(VOCABULARIES[kind], prompt, **options)
    return [*(detokenizer.feed(chunk) for chunk in chunks), detokenizer.flush()]


def one_by_one(ids):
    return [[i] for i in ids]


def byte_tokens(data):
    """The ids of single-byte tokens in the byte-level vocabulary."""
    return [VOCABULARIES["byte level"].table.index(bytes([byte])) for byte in data]


@given(exact_kinds, st.text(max_size=30), st.booleans())
def test_one_token_at_a_time_gives_what_decoding_in_one_go_gives(kind, text, skip):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text).ids
    deltas = texts(kind, [], one_by_one(ids), skip_special_tokens=skip)
    assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(exact_kinds, st.text(max_size=20), st.text(max_size=20))
def test_the_output_continues_the_text_of_the_prompt(kind, before, after):
    tokenizer = TOKENIZERS[kind]
    prompt = tokenizer.encode("boats" + before).ids
    ids = tokenizer.encode(after).ids
    deltas = texts(kind, prompt, one_by_one(ids))
    assert tokenizer.decode(prompt) + "".join(deltas) == tokenizer.decode(prompt + ids)


@given(token_ids, token_ids, st.booleans())
def test_any_byte_level_ids_give_what_the_library_gives(prompt, ids, skip):
    decode = TOKENIZERS["byte level"].decode
    before, whole = decode(prompt, skip_special_tokens=skip), decode(prompt + ids, skip_special_tokens=skip)
    if not whole.startswith(before):  # the output completes a character of the prompt
        before = before.removesuffix(REPLACEMENT)
        assume(whole.startswith(before))
    deltas = texts("byte level", prompt, one_by_one(ids), skip_special_tokens=skip)
    assert before + "".join(deltas) == whole


@given(exact_kinds, token_ids, token_ids, st.booleans(), st.data())
def test_text_does_not_depend_on_how_the_tokens_are_grouped(kind, prompt, ids, skip, data):
    singly = texts(kind, prompt, one_by_one(ids), skip_special_tokens=skip)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    chunks = [ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    grouped = texts(kind, prompt, chunks, skip_special_tokens=skip)
    assert "".join(grouped) == "".join(singly)
    for end, so_far in zip([*cuts, len(ids)], range(1, len(chunks) + 1), strict=True):
        assert "".join(grouped[:so_far]) == "".join(singly[:end])


@given(byte_ids)
def test_invalid_bytes_become_replacement_characters_as_in_utf8_decoding_in_one_go(data):
    """`tokenizers` would replace every byte of the run; text that was sent cannot follow it there."""
    deltas = texts("piece", [260], [[FIRST_BYTE_ID + byte] for byte in data])
    assert "".join(deltas) == bytes(data).decode("utf-8", "replace")


@given(exact_kinds, st.text(st.characters(min_codepoint=0x80, exclude_categories=["Cs"]), max_size=10))
def test_nothing_is_replaced_while_a_character_is_incomplete(kind, text):
    assume(REPLACEMENT not in text)
    deltas = texts(kind, [], one_by_one(TOKENIZERS[kind].encode(text).ids))
    assert REPLACEMENT not in "".join(deltas)


def test_a_character_comes_with_its_last_byte():
    assert texts("byte level", [], one_by_one(byte_tokens("🎉".encode()))) == ["", "", "", "🎉", ""]


def test_an_incomplete_character_is_replaced_at_the_end_only():
    assert texts("byte level", [], one_by_one(byte_tokens(b"a\xe2\x82"))) == ["a", "", "", REPLACEMENT]


def test_an_incomplete_character_is_replaced_once_it_cannot_be_completed():
    assert texts("byte level", [], one_by_one(byte_tokens(b"\xe2\x82a"))) == ["", "", f"{REPLACEMENT}a", ""]


def test_a_character_that_the_prompt_began_is_completed():
    assert texts("byte level", byte_tokens(b"abc\xe2\x82"), one_by_one(byte_tokens(b"\xac!"))) == ["€", "!", ""]


def test_a_character_that_only_the_prompt_has_is_not_emitted():
    prompt = byte_tokens(b"abc\xe2\x82")
    assert texts("byte level", prompt, one_by_one(byte_tokens(b"de"))) == ["d", "e", ""]
    assert texts("byte level", prompt, []) == [""]
    assert texts("byte level", byte_tokens(b"abc\xf0"), one_by_one(byte_tokens(b"\x9f"))) == ["", ""]


def test_a_genuine_replacement_character_across_the_prompts_end_is_emitted():
    assert texts("byte level", byte_tokens(b"\xef\xbf"), one_by_one(byte_tokens(b"\xbd"))) == [REPLACEMENT, ""]


def test_special_tokens_are_shown_on_demand():
    assert texts("byte level", [], [[1], [2]]) == ["", "", ""]
    assert texts("byte level", [], [[1], [2]], skip_special_tokens=False) == ["<|im_start|>", "<|im_end|>", ""]


def test_the_bytes_around_a_hidden_token_belong_together():
    start, *rest = byte_tokens("€".encode())
    assert "".join(texts("byte level", [], [[start], [2], rest])) == "€"


def test_added_tokens_that_are_not_special_are_shown():
    tool = TOKENIZERS["piece"].token_to_id("<tool>")
    assert "".join(texts("piece", [], [[tool]])) == "<tool>"


@pytest.mark.parametrize("kind", ["piece", "metaspace"])
def test_the_space_of_the_first_word_is_kept_after_a_prompt_and_dropped_without_one(kind):
    tokenizer = TOKENIZERS[kind]
    boats = tokenizer.encode("boats").ids
    assert "".join(texts(kind, boats, one_by_one(boats))) == " boats"
    assert "".join(texts(kind, [1], one_by_one(boats))) == "boats"
    assert "".join(texts(kind, [1], one_by_one(boats), skip_special_tokens=False)) == " boats"


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_ids_beyond_the_vocabulary_give_no_text(kind):
    assert "".join(texts(kind, [0], [[100_000], [2**40]])) == ""


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_negative_id_raises(kind):
    with pytest.raises(ValueError, match="negative"):
        open_detokenizer(VOCABULARIES[kind], [0]).feed([-1])


@given(st.lists(st.integers(1, 7), min_size=1, max_size=20), st.integers(0, 5))
def test_a_decoder_that_looks_at_neighbours_is_followed_too(ids, at):
    decode = TOKENIZERS["wordpiece"].decode
    prompt, output = ids[:at], ids[at:]
    deltas = texts("wordpiece", prompt, one_by_one(output))
    assert decode(prompt) + "".join(deltas) == decode(ids)


def test_spaces_between_added_tokens_are_left_out_on_demand():
    tokenizer = TOKENIZERS["wordpiece"]
    ids = [tokenizer.token_to_id(token) for token in ("the", "<a>", "<b>", "boat", "##s")]
    assert "".join(texts("wordpiece", [], one_by_one(ids))) == "the <a> <b> boats"
    without = texts("wordpiece", [], one_by_one(ids), spaces_between_special_tokens=False)
    assert "".join(without) == "the <a><b> boats"
