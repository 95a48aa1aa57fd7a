"""Small random checkpoints that the CPU kernels compute: wide enough, with weights of 16 bits or quantised.

Importing this imports torch and transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gpu.gguf_names import gguf_name
from tests.helpers.kernels import random_raw
from tests.helpers.tiny_checkpoints import write_tokenizer

VOCAB_SIZE = 320
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama_tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama_biases": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "llama_llama3_rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE)),
    "mistral_sliding": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=11)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES | {"head_dim": 16})),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
}


def make_checkpoint(directory: Path, kind: str, dtype: torch.dtype) -> PreTrainedModel:
    """Write a checkpoint of this kind (a key of MODELS) with weights of `dtype`; returns the same model in float32."""
    model = MODELS[kind]().eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            offset = 1.0 if "norm" in name else 0.0
            parameter.copy_(offset + torch.randn(parameter.shape, generator=generator) * 0.15)
    model.to(dtype).save_pretrained(directory)
    write_tokenizer(directory)
    # Loaded again, since what is no weight (the rotation's frequencies) has been rounded as well.
    return type(model).from_pretrained(directory, dtype=torch.float32).eval()


def make_quantised_checkpoint(
    directory: Path, kinds: Mapping[str, str], architecture: str = "llama", hidden_size: int = 256
) -> None:
    """A directory as app/checkpoints makes it of a .gguf file, with random matrices; its embedding is its head.

    `kinds` has their GGUF types by the end of the tensor's name; "" is for the rest."""
    config = SIZES | {
        "hidden_size": hidden_size,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "head_dim": 32,
        "num_hidden_layers": 2,
        "tie_word_embeddings": True,
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[architecture]],
        "rms_norm_eps": 1e-5,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    write_tokenizer(directory)
    tensors, content = [], b""
    random = np.random.default_rng(11)
    for seed, (name, shape) in enumerate(_shapes(config, biased=architecture == "qwen2")):
        kind = "F32" if len(shape) == 1 else kinds[max((end for end in kinds if name.endswith(end)), key=len)]
        if len(shape) == 1:
            numbers = random.standard_normal(shape) * 0.1 + ("norm" in name)
            raw = numbers.astype(np.float32).view(np.uint8)
        else:
            raw = random_raw(kind, *shape, seed)
        entry = {
            "name": gguf_name(name, architecture)[0],
            "type": kind,
            "shape": shape,
            "offset": len(content),
            "nbytes": raw.nbytes,
        }
        tensors.append(entry)
        content += raw.tobytes()
    (directory / "weights.gguf").write_bytes(content)
    index = {"version": 1, "file": str(directory / "weights.gguf"), "size": len(content), "architecture": architecture}
    (directory / "gguf.json").write_text(json.dumps(index | {"tensors": tensors}))


def _shapes(config: dict, biased: bool) -> list[tuple[str, list[int]]]:
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = [("model.embed_tokens.weight", [VOCAB_SIZE, hidden]), ("model.norm.weight", [hidden])]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes += [(f"{prefix}{name}.weight", [hidden]) for name in ("input_layernorm", "post_attention_layernorm")]
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            shapes.append((f"{prefix}self_attn.{name}_proj.weight", [rows, hidden]))
            if biased:
                shapes.append((f"{prefix}self_attn.{name}_proj.bias", [rows]))
        shapes += [
            (f"{prefix}self_attn.o_proj.weight", [hidden, queries]),
            (f"{prefix}mlp.gate_proj.weight", [wide, hidden]),
            (f"{prefix}mlp.up_proj.weight", [wide, hidden]),
            (f"{prefix}mlp.down_proj.weight", [hidden, wide]),
        ]
    return shapes
