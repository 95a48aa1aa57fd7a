"""Hugging Face's names of tensors in GGUF's words. Used by gpu/gguf_weights."""

from __future__ import annotations

import re

KNOWN = (
    *("llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe"),
    *("gemma", "gemma2", "gemma3", "phi3", "glm4", "olmo2", "gpt-oss"),
)
"""The architectures whose names are these."""

_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
_NORM_AFTER_ATTENTION = ("gemma2", "gemma3", "olmo2", "gpt-oss")
"""Where post_attention_layernorm is called by its place; elsewhere it is the feed-forward block's."""
_EXPERTS = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}
"""One tensor holds the matrices of all experts."""
_BARE = ".self_attn.sinks"
"""What is no module's weight, and in GGUF is called one."""
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)")


def gguf_name(name: str, architecture: str) -> tuple[str, int | None]:
    """The tensor's name in GGUF, and which of its matrices is meant if it holds those of all experts.

    Unknown names stay as they are (and are not found).
    """
    if name.endswith(_BARE):
        name += ".weight"
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}", None
    parts = stem.split(".", 3)
    if len(parts) != 4 or parts[:2] != ["model", "layers"]:
        return name, None
    block, within = f"blk.{parts[2]}", parts[3]
    if (expert := _EXPERT.fullmatch(within)) and expert[2] in _EXPERTS:
        return f"{block}.{_EXPERTS[expert[2]]}.{kind}", int(expert[1])
    if within == "post_attention_layernorm" and architecture in _NORM_AFTER_ATTENTION:
        return f"{block}.post_attention_norm.{kind}", None
    return (f"{block}.{_LAYER[within]}.{kind}" if within in _LAYER else name), None
