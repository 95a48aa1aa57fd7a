"""Tiny random checkpoints of every kind that is served, with a tokeniser and a chat template, as a directory.

Made with transformers, whose model is also the reference to compare with. Importing this imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB_SIZE = 320
"""Rows of the embedding; the tokeniser knows fewer."""
HIDDEN_SIZE = 48
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = ["The quick brown fox jumps over the lazy dog.", "Was kostet die Welt? 12345 Gulden, sagt man.", "🦊 été 狐"]

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _llama(**changes: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SIZES, **changes))


def _llama3_rope() -> PreTrainedModel:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    return _llama(head_dim=16, rope_parameters=rope)


def _linear_rope() -> PreTrainedModel:
    return _llama(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})


def _yarn_rope() -> PreTrainedModel:
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    return _llama(head_dim=32, rope_parameters=rope)


def _mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SIZES, head_dim=16, sliding_window=11))


def _qwen2(**changes: object) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **changes))


def _qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32))


def _gemma() -> PreTrainedModel:
    return GemmaForCausalLM(GemmaConfig(**SIZES, head_dim=16))


def gemma2(query_pre_attn_scalar: int) -> PreTrainedModel:
    config = Gemma2Config(
        **SIZES,
        head_dim=16,
        query_pre_attn_scalar=query_pre_attn_scalar,
        sliding_window=11,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
        attn_implementation="eager",  # the only one that has soft caps
    )
    return Gemma2ForCausalLM(config)


def gemma3(query_pre_attn_scalar: int, pattern: int, layers: int) -> PreTrainedModel:
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    config = Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": layers},
        head_dim=16,
        query_pre_attn_scalar=query_pre_attn_scalar,
        sliding_window=11,
        sliding_window_pattern=pattern,
        rope_parameters=ropes,
    )
    return Gemma3ForCausalLM(config)


def mixtral(**changes: object) -> PreTrainedModel:
    return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=5, num_experts_per_tok=2, **changes))


def _qwen2_moe() -> PreTrainedModel:
    experts = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
    return Qwen2MoeForCausalLM(
        Qwen2MoeConfig(**SIZES, **experts, shared_expert_intermediate_size=40, norm_topk_prob=False)
    )


def qwen3_moe(**changes: object) -> PreTrainedModel:
    experts = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts, head_dim=16, norm_topk_prob=True, **changes))


def _phi3(**changes: object) -> PreTrainedModel:
    return Phi3ForCausalLM(Phi3Config(**SIZES, **changes))


def phi3_longrope(original: int) -> PreTrainedModel:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "short_factor": [1.0 + 0.1 * i for i in range(4)],
        "long_factor": [2.0 + 0.7 * i for i in range(4)],
    }
    sizes = SIZES | {"num_attention_heads": 3, "num_key_value_heads": 1}
    return Phi3ForCausalLM(Phi3Config(**sizes, rope_parameters=rope, original_max_position_embeddings=original))


def gpt_oss(**changes: object) -> PreTrainedModel:
    """Sizes that MXFP4's blocks divide; the limit is low enough to be met."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "beta_fast": 8.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    }
    sizes = SIZES | {"hidden_size": 64, "intermediate_size": 32, "head_dim": 16, "sliding_window": 11}
    experts = {"num_local_experts": 5, "num_experts_per_tok": 2, "swiglu_limit": 1.5}
    config = GptOssConfig(**sizes | experts | changes, rope_parameters=rope, attn_implementation="eager")
    return GptOssForCausalLM(config)


def _olmo2() -> PreTrainedModel:
    return Olmo2ForCausalLM(Olmo2Config(**SIZES))


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": _llama,
    "llama_tied": lambda: _llama(tie_word_embeddings=True),
    "llama_biases": lambda: _llama(attention_bias=True, mlp_bias=True),
    "llama_llama3_rope": _llama3_rope,
    "llama_linear_rope": _linear_rope,
    "llama_yarn_rope": _yarn_rope,
    "mistral_sliding": _mistral,
    "qwen2_tied": lambda: _qwen2(tie_word_embeddings=True),
    "qwen2_sliding": lambda: _qwen2(use_sliding_window=True, sliding_window=11, max_window_layers=1),
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": lambda: gemma2(query_pre_attn_scalar=24),
    "gemma3": lambda: gemma3(query_pre_attn_scalar=24, pattern=2, layers=3),
    "mixtral": lambda: mixtral(sliding_window=11),
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": lambda: qwen3_moe(mlp_only_layers=[1]),
    "phi3_sliding": lambda: _phi3(sliding_window=11),
    "phi3_longrope": lambda: phi3_longrope(original=256),
    "glm": lambda: GlmForCausalLM(GlmConfig(**SIZES, head_dim=16)),
    "glm4": lambda: Glm4ForCausalLM(Glm4Config(**SIZES, head_dim=16)),
    "olmo2": _olmo2,
    "gpt_oss": gpt_oss,
}


def make_checkpoint(directory: Path, kind: str = "llama", shard_size: str = "1GB") -> PreTrainedModel:
    """Write a checkpoint of this kind (a key of MODELS) into the directory; returns the model that it was made of."""
    return save_checkpoint(directory, MODELS[kind](), shard_size)


def save_checkpoint(directory: Path, model: PreTrainedModel, shard_size: str = "1GB") -> PreTrainedModel:
    """Give the model random weights and write it, with a tokeniser, into the directory; returns the model."""
    model.eval()
    randomise(model)
    model.save_pretrained(directory, max_shard_size=shard_size)
    write_tokenizer(directory)
    return model


def write_tokenizer(directory: Path) -> None:
    """A byte-level BPE tokeniser with ChatML's special tokens: tokenizer.json and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def randomise(model: PreTrainedModel) -> None:
    """Weights large enough that every part of the arithmetic shows in the logits, biases and norms included."""
    generator = torch.Generator().manual_seed(20240517)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1.0 + 0.2 * noise if "norm" in name else 0.2 * noise)
