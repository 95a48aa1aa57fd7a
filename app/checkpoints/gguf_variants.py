"""What the architectures of GGUF files are called in config.json, and what they say beyond what all of them say.

Used by gguf_config. Where a file does not say what the model's authors published, it stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from app.checkpoints.gguf_metadata import GgufFile
from protocol.errors import CheckpointError

Config = dict[str, Any]
SOFTMAX = 1
"""GGUF's number for experts that are weighted by a softmax over all of them."""


@attrs.frozen
class Variant:
    """One architecture."""

    class_name: str
    model_type: str
    extra: Callable[[GgufFile, str, Config], Config] = lambda gguf, architecture, config: {}
    """From the file, the architecture's name in it, and the config.json so far, to what is added or changed."""
    expressed: frozenset[str] = frozenset()
    """Keys under the architecture that are refused of others."""
    is_partly_rotated: bool = False
    """Whether rope.dimension_count may be below the head dimension."""


def variant(gguf: GgufFile, architecture: str) -> Variant | None:
    """None for an architecture that is not served. llama.cpp's converter writes Mistral and Mixtral as llama."""
    if architecture == "llama" and gguf.metadata.get("llama.expert_count", 0):
        return MIXTRAL
    return VARIANTS.get(architecture)


def _gemma(gguf: GgufFile, architecture: str, config: Config) -> Config:
    return {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(gguf: GgufFile, architecture: str, config: Config) -> Config:
    return _gemma(gguf, architecture, config) | {
        "query_pre_attn_scalar": _attention_scalar(config, 46),
        "attn_logit_softcapping": gguf.get(f"{architecture}.attn_logit_softcapping", float, 50.0),
        "final_logit_softcapping": gguf.get(f"{architecture}.final_logit_softcapping", float, 30.0),
        "sliding_window": gguf.get(f"{architecture}.attention.sliding_window", int, 4096),
        "sliding_window_pattern": 2,
    }


def _gemma3(gguf: GgufFile, architecture: str, config: Config) -> Config:
    return _gemma(gguf, architecture, config) | {
        "query_pre_attn_scalar": _attention_scalar(config, 62),
        "final_logit_softcapping": gguf.get(f"{architecture}.final_logit_softcapping", float, 0.0) or None,
        "sliding_window": gguf.get(f"{architecture}.attention.sliding_window", int, 0) or None,
        "sliding_window_pattern": 6,
        "rope_local_base_freq": gguf.get(f"{architecture}.rope.freq_base_swa", float, 10000.0),
    }


def _attention_scalar(config: Config, layers_of_27b: int) -> int:
    """The largest model's queries are scaled by hidden_size / heads, which is not its head dimension."""
    if config["num_hidden_layers"] == layers_of_27b:
        return int(config["hidden_size"]) // int(config["num_attention_heads"])
    return int(config["head_dim"])


def _phi3(gguf: GgufFile, architecture: str, config: Config) -> Config:
    return {"sliding_window": gguf.get(f"{architecture}.attention.sliding_window", int, 0) or None}


def _mixtral(gguf: GgufFile, architecture: str, config: Config) -> Config:
    count, per_token = _experts(gguf, architecture)
    return {"num_local_experts": count, "num_experts_per_tok": per_token}


def _qwen_moe(gguf: GgufFile, architecture: str, config: Config) -> Config:
    count, per_token = _experts(gguf, architecture)
    normalised = gguf.get(f"{architecture}.expert_weights_norm", bool, architecture == "qwen3moe")
    return {
        "num_experts": count,
        "num_experts_per_tok": per_token,
        "moe_intermediate_size": gguf.require(f"{architecture}.expert_feed_forward_length", int),
        "norm_topk_prob": normalised,
    }


def _qwen2_moe(gguf: GgufFile, architecture: str, config: Config) -> Config:
    return _qwen_moe(gguf, architecture, config) | {
        "shared_expert_intermediate_size": gguf.require(f"{architecture}.expert_shared_feed_forward_length", int),
        "qkv_bias": config["attention_bias"],
    }


def _gpt_oss(gguf: GgufFile, architecture: str, config: Config) -> Config:
    count, per_token = _experts(gguf, architecture)
    scaling = config["rope_scaling"]
    if scaling is not None and scaling["rope_type"] == "yarn":
        scaling = scaling | {
            "beta_fast": gguf.get(f"{architecture}.rope.scaling.yarn_beta_fast", float, 32.0),
            "beta_slow": gguf.get(f"{architecture}.rope.scaling.yarn_beta_slow", float, 1.0),
            "truncate": False,
        }
    return {
        "num_local_experts": count,
        "num_experts_per_tok": per_token,
        "intermediate_size": gguf.require(f"{architecture}.expert_feed_forward_length", int),
        "sliding_window": gguf.get(f"{architecture}.attention.sliding_window", int, 0) or None,
        "swiglu_limit": 7.0,
        "rope_scaling": scaling,
    }


def _experts(gguf: GgufFile, architecture: str) -> tuple[int, int]:
    """How many there are, and how many a token chooses. CheckpointError for a choice that is made in another way."""
    gating = gguf.get(f"{architecture}.expert_gating_func", int, SOFTMAX)
    scale = gguf.get(f"{architecture}.expert_weights_scale", float, 1.0)
    if gating != SOFTMAX or scale not in (0.0, 1.0):
        raise CheckpointError(
            f"{gguf.path}: {architecture}.expert_gating_func {gating} with expert_weights_scale {scale} is not "
            f"supported, expected {SOFTMAX} with 1.0"
        )
    return gguf.require(f"{architecture}.expert_count", int), gguf.require(f"{architecture}.expert_used_count", int)


_WINDOW = frozenset({"attention.sliding_window"})
_CAPS = frozenset({"final_logit_softcapping", "attn_logit_softcapping"})
_EXPERTS = frozenset({"expert_count"})

MIXTRAL = Variant("MixtralForCausalLM", "mixtral", _mixtral, _EXPERTS)
VARIANTS = {
    "llama": Variant("LlamaForCausalLM", "llama"),
    "qwen2": Variant("Qwen2ForCausalLM", "qwen2"),
    "qwen2moe": Variant("Qwen2MoeForCausalLM", "qwen2_moe", _qwen2_moe, _EXPERTS),
    "qwen3": Variant("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": Variant("Qwen3MoeForCausalLM", "qwen3_moe", _qwen_moe, _EXPERTS),
    "gemma": Variant("GemmaForCausalLM", "gemma", _gemma),
    "gemma2": Variant("Gemma2ForCausalLM", "gemma2", _gemma2, _WINDOW | _CAPS),
    "gemma3": Variant("Gemma3ForCausalLM", "gemma3_text", _gemma3, _WINDOW | _CAPS - {"attn_logit_softcapping"}),
    "phi3": Variant("Phi3ForCausalLM", "phi3", _phi3, _WINDOW, is_partly_rotated=True),
    "glm4": Variant("Glm4ForCausalLM", "glm4", is_partly_rotated=True),
    "olmo2": Variant("Olmo2ForCausalLM", "olmo2"),
    "gpt-oss": Variant("GptOssForCausalLM", "gpt_oss", _gpt_oss, _WINDOW | _EXPERTS),
}
"""By general.architecture."""
