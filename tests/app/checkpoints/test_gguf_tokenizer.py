from __future__ import annotations

import functools
import unicodedata
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, trainers

from app.checkpoints.gguf_metadata import read_gguf
from app.checkpoints.gguf_tokenizer import SPACE, build_tokenizer, tokenizer_config
from app.checkpoints.pretokenizers import CUTS
from protocol.errors import CheckpointError
from tests.helpers.reference_bpe import byte_level_encode, score_encode
from tests.helpers.tiny_gguf import SPECIAL, TEXT, Changes, byte_level_vocabulary, write_gguf

SAMPLES = [
    "", " ", "  a", "\n\n1", "1234567 8", "a\t\tb\r\n  c", "don't DON'T I'LL", "x = {'a': [1, 2]}  # y",
    "日本語 text", "e\u0301 vs \u00e9", "🎉👩‍👩‍👧", "½²③ Ⅷ", "trailing   ",
    "…“quoted”…", "a/b//c\n/", "HTMLParser fooBar",
]  # fmt: skip
texts = st.one_of(
    st.text(max_size=30),
    st.text(alphabet="ab1 2'\n\t.Ste é日🎉", max_size=40),
    st.lists(st.sampled_from(TEXT.split(" ")), max_size=8).map(" ".join),
)


def tokenizer_of(tmp_path: Path, **changes: object) -> Tokenizer:
    keys: Changes = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}  # type: ignore[misc]
    return build_tokenizer(read_gguf(write_gguf(tmp_path / "m.gguf", changes=keys)))


@functools.cache
def byte_level(pre: str) -> Tokenizer:
    with TemporaryDirectory() as directory:
        return tokenizer_of(Path(directory), pre=pre, add_bos_token=False)


def patterns(pre: str) -> list[str]:
    return ([r"\p{N}"] if CUTS[pre].single_digits else []) + list(CUTS[pre].patterns)


def expected_ids(pre: str, text: str) -> list[int]:
    tokens, merges = byte_level_vocabulary()
    text = unicodedata.normalize("NFC", text) if CUTS[pre].nfc else text
    vocabulary = {token: index for index, token in enumerate(tokens)}
    return byte_level_encode(text, patterns(pre), vocabulary, list(merges), whole_pieces=CUTS[pre].ignore_merges)


@pytest.mark.parametrize("pre", CUTS)
def test_byte_level_ids_equal_a_plain_reference(pre: str):
    for text in [*SAMPLES, TEXT]:
        assert byte_level(pre).encode(text).ids == expected_ids(pre, text), (pre, text)


@given(texts, st.sampled_from(sorted(CUTS)))
def test_byte_level_ids_equal_a_plain_reference_for_any_text(text: str, pre: str):
    assert byte_level(pre).encode(text).ids == expected_ids(pre, text)


@given(texts)
def test_byte_level_text_comes_back_as_it_was(text: str):
    for pre in ("smollm", "llama-bpe", "tekken"):
        tokenizer = byte_level(pre)
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize(
    ("pre", "pieces"),
    {
        "smollm": [" x", "1", "2", "3", "4", " don", "'t", "\n", "\n", "A"],
        "gpt-2": [" x", "1234", " don", "'t", "\n", "\n", "A"],
        "llama-bpe": [" x", "123", "4", " don", "'t", "\n\n", "A"],
        "qwen2": [" x", "1", "2", "3", "4", " don", "'t", "\n\n", "A"],
        "tekken": [" x", "1", "2", "3", "4", " don", "'t", "\n\n", "A"],
        "gpt-4o": [" x", "123", "4", " don't", "\n\n", "A"],
        "default": [" x", "123", "4", " don", "'", "t", "\n", "\n", "A"],
    }.items(),
)
def test_each_kind_cuts_text_in_its_own_way(pre: str, pieces: list[str]):
    text = " x1234 don't\n\nA"
    cut = CUTS[pre].pre_tokenizer().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == pieces


def test_a_whole_word_that_is_a_token_is_taken_unmerged_where_the_kind_says_so(tmp_path: Path):
    tokens, _ = byte_level_vocabulary()
    changes = {"tokens": [*tokens, "Unmergeable"], "token_type": [1] * (len(tokens) + 1), "add_bos_token": False}
    assert tokenizer_of(tmp_path, pre="llama-bpe", **changes).encode("Unmergeable").ids == [len(tokens)]
    assert len(tokenizer_of(tmp_path, pre="qwen2", **changes).encode("Unmergeable").ids) > 1


def test_control_tokens_are_found_whole_and_hidden_and_user_defined_ones_are_shown(tmp_path: Path):
    tokens, _ = byte_level_vocabulary()
    kinds = [3 if token in SPECIAL else 1 for token in tokens]
    tokenizer = tokenizer_of(tmp_path, tokens=[*tokens, "<tool> x"], token_type=[*kinds, 4])
    ids = tokenizer.encode("a<|im_end|> <tool> x<|im_start|>").ids
    assert (ids[1], ids[3:]) == (2, [len(tokens), 1])
    assert tokenizer.decode(ids) == "a <tool> x"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|im_end|> <tool> x<|im_start|>"


def test_padding_ids_at_the_end_are_no_tokens(tmp_path: Path):
    tokens, _ = byte_level_vocabulary()
    tokenizer = tokenizer_of(tmp_path, tokens=[*tokens, "[PAD1]", "[PAD2]"], token_type=[1] * len(tokens) + [5, 5])
    assert tokenizer.get_vocab_size() == len(tokens)
    assert tokenizer.decode([len(tokens)]) == ""


def test_bos_and_eos_are_added_as_the_file_says(tmp_path: Path):
    def ids(**changes: object) -> list[int]:
        return tokenizer_of(tmp_path, **changes).encode("a").ids

    (a,) = ids(pre="smollm")
    assert ids(pre="smollm", add_bos_token=True) == [1, a]
    assert ids(pre="smollm", add_bos_token=True, add_eos_token=True) == [1, a, 2]
    assert ids(pre="smollm", add_eos_token=True) == [a, 2]
    assert ids(pre="llama-bpe") == [1, a]
    assert ids(pre="llama-bpe", add_bos_token=False) == [a]
    assert tokenizer_of(tmp_path, pre="llama-bpe").encode("a", add_special_tokens=False).ids == [a]
    pair = tokenizer_of(tmp_path, pre="llama-bpe").encode("a", "a")
    assert (pair.ids, pair.type_ids) == ([1, a, 1, a], [0, 0, 1, 1])


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"model": None}, "the key tokenizer.ggml.model is missing"),
    ({"model": "bert"}, "tokenizer.ggml.model is 'bert', expected 'gpt2' or 'llama'"),
    ({"pre": None}, "the key tokenizer.ggml.pre is missing"),
    ({"pre": "grunt"}, "tokenizer.ggml.pre is 'grunt', expected one of"),
    ({"tokens": None}, "the key tokenizer.ggml.tokens is missing"),
    ({"tokens": [1, 2]}, "tokenizer.ggml.tokens must hold strings only"),
    ({"token_type": None}, "the key tokenizer.ggml.token_type is missing"),
    ({"token_type": [1]}, "tokenizer.ggml.token_type has 1 entries, expected"),
    ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "tokenizer.ggml.tokens has 'a' twice, as ids 0 and 2"),
    ({"merges": None}, "the key tokenizer.ggml.merges is missing"),
    ({"merges": ["nobody knows"]}, "tokenizer.ggml.merges has 'nobody knows'"),
    ({"merges": ["abc"]}, "tokenizer.ggml.merges has 'abc'"),
    ({"bos_token_id": None, "add_bos_token": True}, "the key tokenizer.ggml.bos_token_id is missing"),
    ({"bos_token_id": 99999, "add_bos_token": True}, "tokenizer.ggml.bos_token_id is 99999"),
    ({"model": "llama"}, "the key tokenizer.ggml.scores is missing"),
    ({"model": "llama", "scores": [0.5]}, "tokenizer.ggml.scores has 1 entries"),
]


@pytest.mark.parametrize(("changes", "expected"), REFUSED, ids=[expected for _, expected in REFUSED])
def test_what_would_tokenise_wrongly_is_refused_by_key(changes: dict[str, object], expected: str, tmp_path: Path):
    with pytest.raises(CheckpointError) as caught:
        tokenizer_of(tmp_path, **changes)
    assert expected in caught.value.message


@functools.cache
def sentencepiece_keys() -> dict[str, object]:
    """Llama 2's layout: unknown, BOS and EOS, the bytes, then pieces with falling scores; single letters come last."""
    trained = Tokenizer(models.BPE())
    trained.train_from_iterator(
        [SPACE + TEXT.replace(" ", SPACE)], trainers.BpeTrainer(vocab_size=300, show_progress=False, min_frequency=1)
    )
    pieces = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    letters = [piece for piece, _ in pieces if len(piece) == 1 and piece != "\n"]
    words = [piece for piece, _ in pieces if len(piece) > 1 and "\n" not in piece and len(piece) < 12]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *letters]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(words) + len(letters))]
    scores = [0.0] * 259 + [-float(index) for index in range(len(words) + len(letters))]
    special = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return {"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores, "merges": None, **special}


@functools.cache
def sentencepiece(prefix: bool) -> Tokenizer:
    with TemporaryDirectory() as directory:
        return tokenizer_of(Path(directory), add_space_prefix=prefix, add_bos_token=False, **sentencepiece_keys())


@given(texts.filter(lambda text: "<" not in text and SPACE not in text))
def test_score_ranked_ids_equal_a_plain_reference_and_text_comes_back(text: str):
    keys = sentencepiece_keys()
    vocabulary = {token: index for index, token in enumerate(keys["tokens"]) if index > 2}  # type: ignore[arg-type, var-annotated]
    for prefix in (True, False):
        tokenizer = sentencepiece(prefix)
        ids = tokenizer.encode(text).ids
        assert ids == score_encode((" " if prefix and text else "") + text, vocabulary, keys["scores"])  # type: ignore[arg-type]
        assert tokenizer.decode(ids) == text


def test_sentencepiece_models_start_with_bos_unless_told_otherwise(tmp_path: Path):
    tokenizer = tokenizer_of(tmp_path, **sentencepiece_keys())
    assert tokenizer.encode("\n").ids[0] == 1
    assert tokenizer.encode("<s>", add_special_tokens=False).ids == [1]


def test_the_chat_template_and_the_special_tokens_are_kept(tmp_path: Path):
    path = tmp_path / "m.gguf"
    config = tokenizer_config(read_gguf(write_gguf(path)))
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert config["chat_template"] == "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert "chat_template" not in tokenizer_config(
        read_gguf(write_gguf(path, changes={"tokenizer.chat_template": None}))
    )
    changes: Changes = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "T"}
    named = tokenizer_config(read_gguf(write_gguf(path, changes=changes)))["chat_template"]
    assert {entry["name"]: entry["template"] for entry in named} == {
        "tool_use": "T",
        "default": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
