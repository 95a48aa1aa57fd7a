"""A checkpoint's weights expanded to float32 in Hugging Face's form, for servers that read no GGUF.

    python -m scripts.benchmark.export_float32 CHECKPOINT DIRECTORY

A process of its own, so that the benchmark's client need not import torch.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from gpu.weights import open_weights

COPIED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor that a Llama, Qwen2 or Qwen3 checkpoint may have, by its Hugging Face name."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    queries, keys = heads * head_dim, (config.get("num_key_value_heads") or heads) * head_dim
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    yield "lm_head.weight", (config["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    matrices = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    for layer in range(config["num_hidden_layers"]):
        for name, (rows, columns) in matrices.items():
            yield f"model.layers.{layer}.{name}.weight", (rows, columns)
            yield f"model.layers.{layer}.{name}.bias", (rows,)
        for name, size in norms.items():
            yield f"model.layers.{layer}.{name}.weight", (size,)


def export(checkpoint: Path, directory: Path) -> None:
    """Writes the whole directory; an interrupted run leaves no config.json, which is copied last."""
    config = json.loads((checkpoint / "config.json").read_text())
    source = open_weights(checkpoint)
    tensors = {}
    for name, shape in shapes(config):
        if name in source and not (name == "lm_head.weight" and config.get("tie_word_embeddings")):
            tensors[name] = torch.empty(shape, dtype=torch.float32)
            source.read(name, tensors[name])
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    for name in reversed(COPIED):
        if (checkpoint / name).is_file():
            shutil.copyfile(checkpoint / name, directory / name)


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
