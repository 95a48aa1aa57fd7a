"""A checkpoint directory of random weights, for the checks that need one on disk: ranks that each read a part, and a
server. Nothing is fetched."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from scripts.gpu_checks.random_model import Shape

DEVIATION = 0.05
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
END = 256
"""The id of the one token that is no byte."""


def write_checkpoint(directory: Path, shape: Shape, dtype: torch.dtype) -> Path:
    """The same weights each time, and a token for each byte. Returns the directory, which is there already."""
    random = torch.Generator().manual_seed(9)
    tensors = {
        name: torch.ones(size) if len(size) == 1 else torch.randn(size, generator=random) * DEVIATION
        for name, size in _sizes(shape).items()
    }
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, directory / "model.safetensors")
    config = shape.raw_config() | {
        "model_type": "llama",
        "torch_dtype": str(dtype).removeprefix("torch."),
        "eos_token_id": END,
    }
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.BPE(vocab={byte: index for index, byte in enumerate(BYTES)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    assert tokenizer.token_to_id("<|end|>") == END
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return directory


def _sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Of all tensors, by Hugging Face's names."""
    hidden, head = shape.hidden, shape.hidden // shape.heads
    matrices = {
        "self_attn.q_proj": (shape.heads * head, hidden),
        "self_attn.k_proj": (shape.kv_heads * head, hidden),
        "self_attn.v_proj": (shape.kv_heads * head, hidden),
        "self_attn.o_proj": (hidden, shape.heads * head),
        "mlp.gate_proj": (shape.intermediate, hidden),
        "mlp.up_proj": (shape.intermediate, hidden),
        "mlp.down_proj": (hidden, shape.intermediate),
    }
    norms = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (shape.vocab, hidden),
    }
    for layer in range(shape.layers):
        sizes |= {f"model.layers.{layer}.{name}.weight": size for name, size in (matrices | norms).items()}
    return sizes
