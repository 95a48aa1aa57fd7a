"""How text is cut before byte-level BPE merges: one entry per value of GGUF's tokenizer.ggml.pre.

The patterns are facts of the models, the ones in their published tokenizer.json files (Oniguruma syntax, as the
tokenizers library takes it). A value that is not listed is refused: a wrong cut gives wrong tokens without any sign.
"""

from __future__ import annotations

import attrs
from tokenizers import Regex
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS_AND_REST = r"[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|" + WORDS_AND_REST % r"\p{N}{1,3}"
QWEN2 = rf"{CONTRACTIONS}|" + WORDS_AND_REST % r"\p{N}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED_REST = r"%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|" + CASED_REST % r"\p{N}"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?|"
    + CASED_REST % r"\p{N}{1,3}"
)


@attrs.frozen
class Cut:
    """One way to cut: patterns applied one after the other, each to the pieces that the one before left."""

    patterns: tuple[str, ...]
    single_digits: bool = False
    """Each digit is a piece of its own, cut off before the patterns are applied."""
    nfc: bool = False
    """Text is brought to Unicode's composed form first."""
    ignore_merges: bool = False
    """A piece that is a token as a whole is taken as it is."""
    add_bos: bool = False
    """Whether a prompt starts with the BOS token where the file does not say."""

    def pre_tokenizer(self) -> PreTokenizer:
        steps: list[PreTokenizer] = [Digits(individual_digits=True)] if self.single_digits else []
        steps += [Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        steps.append(ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False))
        return Sequence(steps)

    def normalizer(self) -> Normalizer | None:
        return NFC() if self.nfc else None


_GPT2 = Cut((GPT2,))
_DIGITS = Cut((GPT2,), single_digits=True)
_LLAMA3 = Cut((LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2 = Cut((QWEN2,), nfc=True)
_GPT4O = Cut((GPT4O,))

CUTS = {
    "default": Cut((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "olmo": _GPT2,
    "mpt": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "codeshell": _DIGITS,
    "minerva-7b": _DIGITS,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "dbrx": Cut((LLAMA3,)),
    "smaug-bpe": Cut((LLAMA3,)),
    "glm4": Cut((LLAMA3,)),
    "chatglm-bpe": Cut((LLAMA3,)),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "tekken": Cut((TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "deepseek-coder": Cut(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
    ),
}
