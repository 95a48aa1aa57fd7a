"""From a GGUF header to tokenizer.json and tokenizer_config.json. Used by gguf_checkpoint.

The tokeniser must give the ids that the model was trained with, so it is put together from the model's own merges (or
scores) and the cut that tokenizer.ggml.pre names; whatever is missing or unknown is refused by its key.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE

from app.checkpoints.gguf_metadata import GgufFile
from app.checkpoints.pretokenizers import CUTS
from protocol.errors import CheckpointError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"
"""SentencePiece's stand-in for a space."""


def build_tokenizer(gguf: GgufFile) -> Tokenizer:
    """The tokenizer.json of a GGUF model. CheckpointError names the key that is missing, unknown or contradictory."""
    model = gguf.require("tokenizer.ggml.model", str)
    if model == "gpt2":
        tokenizer, add_bos = _byte_level(gguf)
    elif model == "llama":
        tokenizer, add_bos = _sentencepiece(gguf), True
    else:
        raise CheckpointError(f"{gguf.path}: tokenizer.ggml.model is {model!r}, expected 'gpt2' or 'llama'")
    _add_special_tokens(gguf, tokenizer)
    _add_template(gguf, tokenizer, add_bos)
    return tokenizer


def tokenizer_config(gguf: GgufFile) -> dict[str, Any]:
    """tokenizer_config.json: the special tokens' texts and the chat template, if the file has one."""
    tokens = _tokens(gguf)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.require(f"{gguf.require('general.architecture', str)}.context_length", int),
    }
    for name, target in {
        "bos": "bos_token",
        "eos": "eos_token",
        "unknown": "unk_token",
        "padding": "pad_token",
    }.items():
        if (index := _special_id(gguf, name, tokens)) is not None:
            config[target] = tokens[index]
    names = gguf.strings("tokenizer.chat_templates") if "tokenizer.chat_templates" in gguf.metadata else []
    templates = {name: gguf.require(f"tokenizer.chat_template.{name}", str) for name in names}
    if "tokenizer.chat_template" in gguf.metadata:
        templates["default"] = gguf.require("tokenizer.chat_template", str)
    if list(templates) == ["default"]:
        config["chat_template"] = templates["default"]
    elif templates:
        config["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    return config


def _tokens(gguf: GgufFile) -> list[str]:
    """The text of each id, without the unused ids at the end (rows that only pad the embedding)."""
    tokens, kinds = gguf.strings("tokenizer.ggml.tokens"), _kinds(gguf)
    if not tokens:
        raise CheckpointError(f"{gguf.path}: tokenizer.ggml.tokens is empty")
    if len(kinds) != len(tokens):
        raise CheckpointError(
            f"{gguf.path}: tokenizer.ggml.token_type has {len(kinds)} entries, expected {len(tokens)}, one per token"
        )
    used = max((index + 1 for index, kind in enumerate(kinds) if kind != UNUSED), default=0)
    tokens, kinds = tokens[:used], kinds[:used]
    # An AddedToken is found in the text as it is written, where a space is a space.
    tokens = [
        token.replace(SPACE, " ") if kind == USER_DEFINED else token for token, kind in zip(tokens, kinds, strict=True)
    ]
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    first = dict(reversed([(token, index) for index, token in enumerate(tokens)]))
    if len(first) != len(tokens):
        index = next(index for index, token in enumerate(tokens) if first[token] != index)
        raise CheckpointError(
            f"{gguf.path}: tokenizer.ggml.tokens has {tokens[index]!r} twice, as ids {first[tokens[index]]} and {index}"
        )
    return tokens


def _kinds(gguf: GgufFile) -> list[int]:
    return [int(kind) for kind in gguf.numbers("tokenizer.ggml.token_type")]


def _special_id(gguf: GgufFile, name: str, tokens: list[str]) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in gguf.metadata:
        return None
    index = gguf.require(key, int)
    if not 0 <= index < len(tokens):
        raise CheckpointError(f"{gguf.path}: {key} is {index}, but there are {len(tokens)} tokens")
    return index


def _byte_level(gguf: GgufFile) -> tuple[Tokenizer, bool]:
    """GPT-2's kind: bytes written as printable characters, merged by rank. Also whether a BOS token is the rule."""
    pre = gguf.require("tokenizer.ggml.pre", str)
    cut = CUTS.get(pre)
    if cut is None:
        raise CheckpointError(f"{gguf.path}: tokenizer.ggml.pre is {pre!r}, expected one of {', '.join(CUTS)}")
    vocabulary = {token: index for index, token in enumerate(_tokens(gguf))}
    merges = [_merge(gguf, line, vocabulary) for line in gguf.strings("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(BPE(vocabulary, merges, fuse_unk=False, ignore_merges=cut.ignore_merges))
    if (normalizer := cut.normalizer()) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = cut.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, cut.add_bos


def _merge(gguf: GgufFile, line: str, vocabulary: dict[str, int]) -> tuple[str, str]:
    # The left part may itself start with a space, so the separator is looked for from the second character on.
    at = line.find(" ", 1)
    left, right = line[:at], line[at + 1 :]
    if at < 0 or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
        raise CheckpointError(
            f"{gguf.path}: tokenizer.ggml.merges has {line!r}, expected two tokens whose joined text is a token"
        )
    return left, right


def _sentencepiece(gguf: GgufFile) -> Tokenizer:
    """Llama 2's kind: no cut, spaces written as a character, merges ranked by the joined piece's score."""
    tokens, kinds = _tokens(gguf), _kinds(gguf)
    scores = gguf.numbers("tokenizer.ggml.scores")
    if len(scores) < len(tokens):
        raise CheckpointError(
            f"{gguf.path}: tokenizer.ggml.scores has {len(scores)} entries, expected {len(tokens)}, one per token"
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    normal = {token: index for token, index in vocabulary.items() if kinds[index] == NORMAL}
    unknown = _special_id(gguf, "unknown", tokens)
    tokenizer = Tokenizer(
        BPE(
            vocabulary,
            _merges_by_score(normal, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=BYTE in kinds,
        )
    )
    prefix = gguf.get("tokenizer.ggml.add_space_prefix", bool, True)
    escape = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), escape] if prefix else [escape])
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _merges_by_score(normal: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two pieces; the best score first, then by id, then the parts' ids."""
    ranked = []
    for piece, index in normal.items():
        for at in range(1, len(piece)):
            left, right = normal.get(piece[:at]), normal.get(piece[at:])
            if left is not None and right is not None:
                ranked.append((-scores[index], index, left, right, piece[:at], piece[at:]))
    ranked.sort()
    return [entry[4:] for entry in ranked]


def _add_special_tokens(gguf: GgufFile, tokenizer: Tokenizer) -> None:
    """Control tokens are found whole and hidden from text, user-defined ones are found whole and shown."""
    tokens = list(zip(_tokens(gguf), _kinds(gguf), strict=False))
    hidden = [token for token, kind in tokens if kind in (CONTROL, UNKNOWN)]
    shown = [token for token, kind in tokens if kind == USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in hidden])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in shown])


def _add_template(gguf: GgufFile, tokenizer: Tokenizer, add_bos: bool) -> None:
    """Put BOS before (and EOS after) what is encoded, if the model wants it."""
    tokens = _tokens(gguf)
    before = gguf.get("tokenizer.ggml.add_bos_token", bool, add_bos)
    after = gguf.get("tokenizer.ggml.add_eos_token", bool, False)
    special: dict[str, int] = {}
    template = {"bos": "", "eos": ""}
    for name, wanted in {"bos": before, "eos": after}.items():
        if wanted:
            if (index := _special_id(gguf, name, tokens)) is None:
                raise CheckpointError(
                    f"{gguf.path}: the key tokenizer.ggml.{name}_token_id is missing, though prompts need that token"
                )
            special[tokens[index]] = index
            template[name] = tokens[index]
    if special:
        single = [part for part in (template["bos"], "$A", template["eos"]) if part]
        pair = single + [f"{part}:1" if part in special else "$B:1" for part in single]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=list(special.items())
        )
