"""Small GGUF files, written with the gguf package, which is independent of our reader."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
from gguf import GGUFValueType, GGUFWriter
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HIDDEN, HEADS, KEY_VALUE_HEADS, LAYERS, FEED_FORWARD = 64, 4, 2, 1, 96
TEXT = (
    "The quick brown fox jumps over the lazy dog, doesn't it?  Yes: it's 1234 times 56789.\n\n"
    "def main(argument):\n    return argument + 1  # comment\n\t\tprint('hello')\n"
    "Überraschung naïve café 日本語のテキスト 한국어 🎉🎉 we'll they'd I'm you've\n" * 3
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
Scalar = str | bool | int | float
Changes = dict[str, Scalar | list | None]


@functools.cache
def byte_level_vocabulary() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens (the special ones first) and merges of a byte-level BPE trained on TEXT."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    return tuple(token for token, _ in tokens), tuple(merges)


def metadata(architecture: str = "llama") -> Changes:
    """A whole set of keys, of a byte-level model."""
    tokens, merges = byte_level_vocabulary()
    return {
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": FEED_FORWARD,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KEY_VALUE_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }


def write_gguf(
    path: Path,
    architecture: str = "llama",
    changes: Changes | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    rows: int | None = None,
) -> Path:
    """A GGUF file with `metadata` changed (None takes a key away), an embedding of `rows` rows, and further tensors."""
    keys = {key: value for key, value in {**metadata(architecture), **(changes or {})}.items() if value is not None}
    writer = GGUFWriter(path, architecture)
    for key, value in keys.items():
        add(writer, key, value)
    tokens = keys.get("tokenizer.ggml.tokens", [])
    embedding = np.zeros((len(tokens) if rows is None else rows, HIDDEN), dtype=np.float32)
    for name, tensor in {"token_embd.weight": embedding, **(tensors or {})}.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: GGUFWriter, key: str, value: Scalar | list) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        kinds = {str: GGUFValueType.STRING, bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32}
        writer.add_key_value(key, value, kinds.get(type(value), GGUFValueType.FLOAT32))
