from __future__ import annotations

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders

from actors.output.decoding_rule import ByteLevelRule, PieceRule, decoding_rule
from actors.output.vocabulary import Vocabulary, load_vocabulary
from protocol.errors import CheckpointError
from tests.helpers.dummy_checkpoint import VOCAB_SIZE, write_dummy_checkpoint
from tests.helpers.small_tokenizers import (
    FIRST_BYTE_ID,
    byte_level_tokenizer,
    metaspace_tokenizer,
    piece_tokenizer,
    wordpiece_tokenizer,
)


def test_every_byte_has_a_token_in_a_byte_level_vocabulary():
    vocabulary = Vocabulary(byte_level_tokenizer())
    assert {bytes([byte]) for byte in range(256)} <= set(vocabulary.table)


def test_byte_tokens_of_a_piece_vocabulary_are_the_byte():
    vocabulary = Vocabulary(piece_tokenizer())
    assert [vocabulary.token_bytes(FIRST_BYTE_ID + byte) for byte in range(256)] == [bytes([b]) for b in range(256)]


@pytest.mark.parametrize("build", [byte_level_tokenizer, piece_tokenizer, metaspace_tokenizer])
def test_the_tokens_of_a_text_join_to_its_bytes(build):
    tokenizer = build()
    vocabulary = Vocabulary(tokenizer)
    text = "Nine boats, 船 🎉 and a <tool>"
    joined = b"".join(vocabulary.token_bytes(i) for i in tokenizer.encode(text).ids)
    assert joined.removeprefix(b" ") == text.encode()


def test_ids_beyond_the_vocabulary_stand_for_nothing():
    vocabulary = Vocabulary(byte_level_tokenizer())
    assert vocabulary.size == VOCAB_SIZE
    assert vocabulary.token_bytes(VOCAB_SIZE) == b""
    assert vocabulary.token_text(10**9) == ""
    assert not vocabulary.is_special(VOCAB_SIZE)


def test_a_negative_id_is_refused():
    with pytest.raises(ValueError, match="-1 is negative"):
        Vocabulary(byte_level_tokenizer()).token_bytes(-1)


def test_the_text_of_half_a_character_spells_its_bytes_out():
    vocabulary = Vocabulary(piece_tokenizer())
    assert vocabulary.token_text(FIRST_BYTE_ID + 0xE2) == r"bytes:\xe2"
    assert vocabulary.token_text(FIRST_BYTE_ID + 0x41) == "A"


def test_special_tokens_have_their_own_string_as_text():
    vocabulary = Vocabulary(byte_level_tokenizer())
    assert vocabulary.token_text(2) == "<|im_end|>"
    assert vocabulary.is_special(2)
    assert not vocabulary.is_special(3)


def test_an_added_token_is_meant_literally_by_a_byte_level_vocabulary():
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken("é", normalized=False)])
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.token_text(tokenizer.token_to_id("é")) == "é"


def test_other_decoders_have_no_rule():
    assert Vocabulary(wordpiece_tokenizer()).rule is None
    assert decoding_rule(None) is None
    assert decoding_rule(decoders.BPEDecoder().__getstate__()) is None
    assert decoding_rule(decoders.Replace(Regex("a+"), "b").__getstate__()) is None
    assert decoding_rule(decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "b")]).__getstate__()) is None
    assert decoding_rule(decoders.Strip(" ", 1, 0).__getstate__()) is None


def test_the_rule_is_read_off_the_decoder():
    assert decoding_rule(decoders.ByteLevel().__getstate__()) == ByteLevelRule()
    assert decoding_rule(decoders.Metaspace().__getstate__()) == PieceRule((("▁", " "),), False, 0, "▁")
    never = decoders.Metaspace(prepend_scheme="never")
    assert decoding_rule(never.__getstate__()) == PieceRule((("▁", " "),), False, 0, "")
    gemma = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    assert decoding_rule(gemma.__getstate__()) == PieceRule((("▁", " "),), True, 0, "")


def test_a_checkpoint_is_loaded(tmp_path):
    assert load_vocabulary(write_dummy_checkpoint(tmp_path / "model")).size == VOCAB_SIZE


def test_a_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: no such file"):
        load_vocabulary(tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokenizer"):
        load_vocabulary(tmp_path)


def test_an_empty_vocabulary_is_refused(tmp_path):
    Tokenizer.from_str('{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{},"merges":[]}}').save(
        str(tmp_path / "tokenizer.json")
    )
    with pytest.raises(CheckpointError, match="empty vocabulary"):
        load_vocabulary(tmp_path)
