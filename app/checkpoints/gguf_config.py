"""From a GGUF header to Hugging Face's config.json and generation_config.json. Used by gguf_checkpoint.

What changes the arithmetic and has no counterpart here is refused by its key's name: a model that is served must be the
model that was trained.
"""

from __future__ import annotations

import math
import mmap
import struct
from typing import Any

from app.checkpoints.gguf_metadata import GgufFile
from app.checkpoints.gguf_variants import VARIANTS, Variant, variant
from protocol.errors import CheckpointError

REFUSED = (
    "expert_count",
    "expert_group_count",
    "leading_dense_block_count",
    "nextn_predict_layers",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "attention.sliding_window_pattern",
    "rope.dimension_sections",
)
"""Keys under the architecture that change the arithmetic: any value but zero is refused, unless it expresses them."""

ROPE_FREQS = "rope_freqs.weight"
ROPE_SHORT, ROPE_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
ROPE_TENSORS = (ROPE_FREQS, ROPE_SHORT, ROPE_LONG)
"""What they say is in config.json's rope_scaling."""
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What every Llama 3.1 to 3.3 model has; GGUF stores only the frequency divisors that follow from it."""


def model_config(gguf: GgufFile) -> dict[str, Any]:
    """config.json. CheckpointError names the missing key, or the one whose value cannot be expressed."""
    architecture = gguf.require("general.architecture", str)
    known = variant(gguf, architecture)
    if known is None:
        raise CheckpointError(
            f"{gguf.path}: general.architecture is {architecture!r}, expected one of {', '.join(VARIANTS)}"
        )
    _refuse_unknown_arithmetic(gguf, architecture, known)
    hidden = gguf.require(f"{architecture}.embedding_length", int)
    heads = _same_for_all_layers(gguf, f"{architecture}.attention.head_count")
    key_value_heads = heads
    if (key := f"{architecture}.attention.head_count_kv") in gguf.metadata:
        key_value_heads = _same_for_all_layers(gguf, key)
    if heads <= 0 or key_value_heads <= 0 or heads % key_value_heads:
        raise CheckpointError(
            f"{gguf.path}: {architecture}.attention.head_count is {heads}, head_count_kv is {key_value_heads}, "
            "expected positive numbers, the first a multiple of the second"
        )
    head_dim, rotated = _head_dims(gguf, architecture, hidden, heads, known)
    context = gguf.require(f"{architecture}.context_length", int)
    config: dict[str, Any] = {
        "architectures": [known.class_name],
        "model_type": known.model_type,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": _same_for_all_layers(gguf, f"{architecture}.feed_forward_length"),
        "num_hidden_layers": gguf.require(f"{architecture}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "head_dim": head_dim,
        "rms_norm_eps": _shortest(gguf.require(f"{architecture}.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": _shortest(gguf.get(f"{architecture}.rope.freq_base", float, 10000.0)),
        "rope_scaling": _rope_scaling(gguf, architecture, rotated),
        "max_position_embeddings": context,
        "vocab_size": _vocab_size(gguf, hidden),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in gguf.tensors,
    }
    if rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    window = gguf.get(f"{architecture}.attention.sliding_window", int, 0)
    if 0 < window < context and "attention.sliding_window" not in known.expressed:
        raise CheckpointError(
            f"{gguf.path}: {architecture}.attention.sliding_window {window} below the context length {context} "
            "is not supported"
        )
    return config | known.extra(gguf, architecture, config) | _special_ids(gguf)


def generation_config(gguf: GgufFile) -> dict[str, Any]:
    """generation_config.json: all the ids that end an answer."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [gguf.require(f"tokenizer.ggml.{key}", int) for key in keys if f"tokenizer.ggml.{key}" in gguf.metadata]
    return _special_ids(gguf) | {"eos_token_id": list(dict.fromkeys(ids))}


def _refuse_unknown_arithmetic(gguf: GgufFile, architecture: str, known: Variant) -> None:
    if gguf.get("split.count", int, 1) > 1:
        raise CheckpointError(f"{gguf.path}: split.count is above 1: merge the parts into one file first")
    for name in REFUSED:
        key = f"{architecture}.{name}"
        if gguf.metadata.get(key, 0) and name not in known.expressed:
            raise CheckpointError(f"{gguf.path}: {key} = {gguf.metadata[key]} is not supported")
    if not gguf.get(f"{architecture}.attention.causal", bool, True):
        raise CheckpointError(f"{gguf.path}: {architecture}.attention.causal = false is not supported")


def _same_for_all_layers(gguf: GgufFile, key: str) -> int:
    """A whole number that some files give once per layer."""
    if not isinstance(gguf.metadata.get(key), list):
        return gguf.require(key, int)
    values = set(gguf.numbers(key))
    if len(values) != 1:
        raise CheckpointError(f"{gguf.path}: {key} differs between layers ({sorted(values)}), which is not supported")
    return int(values.pop())


def _head_dims(gguf: GgufFile, architecture: str, hidden: int, heads: int, known: Variant) -> tuple[int, int]:
    """A head's dimensions, and how many of them are rotated."""
    head_dim = gguf.get(f"{architecture}.attention.key_length", int, hidden // heads)
    value_length = gguf.get(f"{architecture}.attention.value_length", int, head_dim)
    rotated = gguf.get(f"{architecture}.rope.dimension_count", int, head_dim)
    if value_length != head_dim or (rotated != head_dim and not (known.is_partly_rotated and 0 < rotated < head_dim)):
        raise CheckpointError(
            f"{gguf.path}: {architecture}.attention.value_length {value_length} and rope.dimension_count {rotated} "
            f"must equal the head dimension {head_dim}"
        )
    return head_dim, rotated


def _vocab_size(gguf: GgufFile, hidden: int) -> int:
    """Rows of the embedding, which may be more than the tokeniser's tokens."""
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{gguf.path}: the tensor token_embd.weight is missing")
    if len(embedding.shape) != 2 or embedding.shape[1] != hidden:
        raise CheckpointError(
            f"{gguf.path}: token_embd.weight has the shape {list(embedding.shape)}, expected [vocabulary, {hidden}]"
        )
    return embedding.shape[0]


def _special_ids(gguf: GgufFile) -> dict[str, Any]:
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    keys = {f"tokenizer.ggml.{name}_token_id": target for name, target in names.items()}
    return {target: gguf.require(key, int) for key, target in keys.items() if key in gguf.metadata}


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: GGUF's 9.99999974e-06 was 1e-05 in the model's config.json."""
    for digits in range(1, 9):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", value):
            return short
    return value


def _rope_scaling(gguf: GgufFile, architecture: str, rotated: int) -> dict[str, Any] | None:
    kind = gguf.get(f"{architecture}.rope.scaling.type", str, "none")
    factor = gguf.get(f"{architecture}.rope.scaling.factor", float, 1.0)
    if ROPE_LONG in gguf.tensors:
        return _longrope_scaling(gguf, architecture)
    if ROPE_FREQS in gguf.tensors:
        if kind != "none":
            raise CheckpointError(
                f"{gguf.path}: {ROPE_FREQS} together with rope.scaling.type {kind!r} is not supported"
            )
        return _llama3_scaling(gguf, architecture, rotated)
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        for name in ("attn_factor", "yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"):
            key = f"{architecture}.rope.scaling.{name}"
            if key in gguf.metadata:
                raise CheckpointError(f"{gguf.path}: {key} is not supported")
        original = gguf.require(f"{architecture}.rope.scaling.original_context_length", int)
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise CheckpointError(f"{gguf.path}: {architecture}.rope.scaling.type {kind!r} is not supported")


def _longrope_scaling(gguf: GgufFile, architecture: str) -> dict[str, Any]:
    """One set of divisors for short contexts and one for long ones."""
    if ROPE_SHORT not in gguf.tensors:
        raise CheckpointError(f"{gguf.path}: there is {ROPE_LONG}, and no {ROPE_SHORT}")
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": [_shortest(factor) for factor in _float32_tensor(gguf, ROPE_SHORT)],
        "long_factor": [_shortest(factor) for factor in _float32_tensor(gguf, ROPE_LONG)],
        "original_max_position_embeddings": gguf.require(f"{architecture}.rope.scaling.original_context_length", int),
    }
    if (key := f"{architecture}.rope.scaling.attn_factor") in gguf.metadata:
        scaling["attention_factor"] = gguf.require(key, float)
    return scaling


def _llama3_scaling(gguf: GgufFile, architecture: str, head_dim: int) -> dict[str, Any]:
    """Find Llama 3's parameters again from the divisors made of them; take them only if they give these divisors."""
    divisors = _float32_tensor(gguf, ROPE_FREQS)
    factor = _shortest(max(divisors))
    theta = gguf.get(f"{architecture}.rope.freq_base", float, 10000.0)
    low, high, original = (
        LLAMA3["low_freq_factor"],
        LLAMA3["high_freq_factor"],
        LLAMA3["original_max_position_embeddings"],
    )
    expected = []
    for index in range(head_dim // 2):
        rotations = original / (2 * math.pi * theta ** (2 * index / head_dim))
        smooth = min(1.0, max(0.0, (rotations - low) / (high - low)))
        expected.append(1.0 / ((1.0 - smooth) / factor + smooth))
    if len(divisors) != len(expected) or any(
        not math.isclose(a, b, rel_tol=1e-4) for a, b in zip(divisors, expected, strict=True)
    ):
        raise CheckpointError(f"{gguf.path}: the divisors in {ROPE_FREQS} are not those of Llama 3's rope scaling")
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}


def _float32_tensor(gguf: GgufFile, name: str) -> list[float]:
    tensor = gguf.tensors[name]
    if tensor.type != "F32":
        raise CheckpointError(f"{gguf.path}: tensor {name} has the type {tensor.type}, expected F32")
    with gguf.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return list(struct.unpack_from(f"<{tensor.nbytes // 4}f", data, tensor.offset))
