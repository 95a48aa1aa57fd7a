"""Tiny models as GGUF files, with the keys, names and orders that llama.cpp's converter writes.

Tensor names come from the gguf package. Importing this imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file
from transformers import PreTrainedModel

from tests.helpers.tiny_checkpoints import MODELS, gemma2, gemma3, gpt_oss, mixtral, qwen3_moe
from tests.helpers.tiny_gguf import add

KINDS: dict[str, tuple[str, Callable[[], PreTrainedModel]]] = {
    "gemma": ("gemma", MODELS["gemma"]),
    "gemma2": ("gemma2", lambda: gemma2(query_pre_attn_scalar=16)),
    "gemma3": ("gemma3", lambda: gemma3(query_pre_attn_scalar=16, pattern=6, layers=7)),
    "mixtral": ("llama", mixtral),
    "qwen2_moe": ("qwen2moe", MODELS["qwen2_moe"]),
    "qwen3_moe": ("qwen3moe", qwen3_moe),
    "phi3_sliding": ("phi3", MODELS["phi3_sliding"]),
    "phi3_longrope": ("phi3", MODELS["phi3_longrope"]),
    "glm4": ("glm4", MODELS["glm4"]),
    "olmo2": ("olmo2", MODELS["olmo2"]),
    "gpt_oss": ("gpt-oss", lambda: gpt_oss(swiglu_limit=7.0)),
}
"""To general.architecture and the model."""


def write_model(path: Path, checkpoint: Path, architecture: str) -> None:
    """The model in this checkpoint directory as a GGUF file of this architecture."""
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**_keys(config, architecture), **_tokenizer_keys(checkpoint)}.items():
        add(writer, key if "." in key and key.startswith("tokenizer") else f"{architecture}.{key}", value)
    for name, values in _tensors(checkpoint, config, architecture).items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _keys(config: dict, architecture: str) -> dict:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"]
    everywhere = rope.get("full_attention", rope)
    keys = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.freq_base": float(everywhere["rope_theta"]),
        "rope.dimension_count": int(head_dim * everywhere.get("partial_rotary_factor", 1.0)),
    }
    optional = {
        "attention.sliding_window": config.get("sliding_window"),
        "attn_logit_softcapping": config.get("attn_logit_softcapping"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        "expert_count": config.get("num_experts") or config.get("num_local_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
    }
    if everywhere["rope_type"] == "linear":
        optional |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(everywhere["factor"])}
    if everywhere["rope_type"] == "yarn":
        optional |= {
            "expert_feed_forward_length": config["intermediate_size"],
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(everywhere["factor"]),
            "rope.scaling.original_context_length": everywhere["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(everywhere["beta_fast"]),
        }
    if everywhere["rope_type"] == "longrope":
        optional |= {"rope.scaling.original_context_length": config["original_max_position_embeddings"]}
    return keys | {key: value for key, value in optional.items() if value is not None}


def _unstacked(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Gates and ups apart, and matrices [experts, out, in]; what is none of the experts' stays."""
    if ".experts." not in name:
        return {name: values}
    bias = name.endswith("_bias")
    if not bias:
        values = values.swapaxes(1, 2)
    name, kind = (name.removesuffix("_bias"), "bias") if bias else (name, "weight")
    if name.endswith("down_proj"):
        return {f"{name}.{kind}": values}
    prefix = name.removesuffix("gate_up_proj")
    return {f"{prefix}gate_proj.{kind}": values[:, 0::2], f"{prefix}up_proj.{kind}": values[:, 1::2]}


def _tokenizer_keys(checkpoint: Path) -> dict:
    model = json.loads((checkpoint / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token.startswith("<|") else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def _tensors(checkpoint: Path, config: dict, architecture: str) -> dict[str, np.ndarray]:
    arch = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    experts: dict[str, dict[int, np.ndarray]] = {}
    tensors: dict[str, np.ndarray] = {}

    def put(name: str, values: np.ndarray) -> None:
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, f"the gguf package knows no {name} of {architecture}"
        tensors[f"{found}.weight" if found.endswith("attn_sinks") else found] = values

    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        values = tensor.float().numpy()
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        if architecture == "llama" and (projection := name.split(".")[-2]) in heads:
            rows = values.shape[0] // heads[projection] // 2
            split = values.reshape(heads[projection], 2, rows, *values.shape[1:])
            values = split.swapaxes(1, 2).reshape(values.shape)
        before, found, after = name.partition(".experts.")
        if architecture == "gpt-oss":
            for one, part in _unstacked(name, values).items():
                put(one, part)
        elif found:
            index, _, rest = after.partition(".")
            merged = f"{before}.experts.{rest}"
            if architecture == "llama":
                merged = f"layers.{name.split('.')[2]}.feed_forward.experts.{rest}"
            experts.setdefault(merged, {})[int(index)] = values
        else:
            put(name, values.squeeze())
    for name, parts in experts.items():
        put(name, np.stack([parts[index] for index in sorted(parts)]))
    for kind in ("long", "short"):
        if factors := config["rope_parameters"].get(f"{kind}_factor"):
            tensors[f"rope_factors_{kind}.weight"] = np.array(factors, dtype=np.float32)
    return tensors
