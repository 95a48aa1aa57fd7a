"""Real tokenizers of the kinds that language models have, small enough to build in a test."""

from __future__ import annotations

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.helpers.dummy_checkpoint import PARAGRAPH, dummy_tokenizer

FIRST_BYTE_ID = 3


def byte_level_tokenizer() -> Tokenizer:
    """As GPT-2, Llama 3, Qwen: see tests/helpers/dummy_checkpoint. Ids 0 to 2 are special."""
    return dummy_tokenizer()


def piece_tokenizer() -> Tokenizer:
    """As Llama 2: U+2581 for a space, one prepended to the text, byte tokens from FIRST_BYTE_ID on for what is unknown.

    Ids 0 to 2 are <unk>, <s> and </s>, all special; <tool> is the last id, added but not special.
    """
    tokenizer = _with_bytes(_trained())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    _add_tokens(tokenizer)
    return tokenizer


def metaspace_tokenizer() -> Tokenizer:
    """As piece_tokenizer, with the decoder that older conversions have: it drops U+2581 from the first token."""
    tokenizer = _with_bytes(_trained())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    _add_tokens(tokenizer)
    return tokenizer


def wordpiece_tokenizer() -> Tokenizer:
    """As BERT: its decoder puts spaces between tokens, depending on the neighbours."""
    words = ["[UNK]", "the", "boat", "##s", "##man", ".", ",", "harbour", "é"]
    tokenizer = Tokenizer(models.WordPiece(vocab={word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.add_special_tokens([AddedToken("[SEP]", special=True)])
    tokenizer.add_tokens([AddedToken("<a>"), AddedToken("<b>")])
    return tokenizer


def _trained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=300, min_frequency=1, show_progress=False)
    tokenizer.train_from_iterator(PARAGRAPH.lower().split("\n"), trainer)
    return tokenizer


def _with_bytes(trained: Tokenizer) -> Tokenizer:
    model = json.loads(trained.to_str())["model"]
    strings = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    merges = [tuple(merge) for merge in model["merges"]]
    vocab = {string: i for i, string in enumerate(strings)}
    return Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))


def _add_tokens(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
