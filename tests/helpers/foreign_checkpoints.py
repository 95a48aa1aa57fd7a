"""Tiny random checkpoints of models that trillm computes with transformers' own code, and of some that it refuses.

Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers import (
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    BloomForCausalLM,
    Cohere2Config,
    Cohere2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    PreTrainedModel,
)

from tests.helpers.tiny_checkpoints import SIZES, randomise, write_tokenizer

ALL_HEADS = SIZES | {"num_key_value_heads": 6}


def _deepseek() -> PreTrainedModel:
    """Values of another size than keys, and experts in groups."""
    latent = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(**ALL_HEADS, **latent, **experts, moe_intermediate_size=24, first_k_dense_replace=1)
    )


def _gemma3_that_sees() -> PreTrainedModel:
    """A text model beside a vision model."""
    text = SIZES | {"head_dim": 16, "sliding_window": 11, "sliding_window_pattern": 2}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 16, "patch_size": 4}
    return Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4))


def _opt() -> PreTrainedModel:
    """Learned positions, and a head that calls a part of the model itself."""
    sizes = {"vocab_size": 320, "hidden_size": 48, "ffn_dim": 80, "num_hidden_layers": 2, "num_attention_heads": 6}
    return OPTForCausalLM(OPTConfig(**sizes, word_embed_proj_dim=48, max_position_embeddings=256))


def _gpt_neox() -> PreTrainedModel:
    """Attention and feed-forward beside each other, and partial rotation."""
    return GPTNeoXForCausalLM(GPTNeoXConfig(**{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}))


def _falcon_h1() -> PreTrainedModel:
    sizes = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
    return FalconH1ForCausalLM(FalconH1Config(**SIZES, **sizes))


def _phimoe() -> PreTrainedModel:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "short_mscale": 1.0, "long_mscale": 1.0}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64, **factors}
    return PhimoeForCausalLM(PhimoeConfig(**SIZES, num_local_experts=4, rope_parameters=rope))


SERVED: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt_neox": _gpt_neox,
    # Neighbours are rotated in the layers with a window, nothing in the others; logits are scaled.
    "cohere2": lambda: Cohere2ForCausalLM(Cohere2Config(**SIZES, sliding_window=11, sliding_window_pattern=2)),
    "deepseek_v3": _deepseek,
    "gemma3_that_sees": _gemma3_that_sees,
    "opt": _opt,
}
REFUSED: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertForMaskedLM(
        BertConfig(vocab_size=320, hidden_size=48, num_hidden_layers=1, num_attention_heads=6, intermediate_size=80)
    ),
    "bloom": lambda: BloomForCausalLM(BloomConfig(vocab_size=320, hidden_size=48, n_layer=1, n_head=6)),
    "falcon": lambda: FalconForCausalLM(
        FalconConfig(vocab_size=320, hidden_size=48, num_hidden_layers=1, num_attention_heads=6)
    ),
    "falcon_h1": _falcon_h1,
    "gpt_oss": lambda: GptOssForCausalLM(  # whose gate is not that which the decoder computes
        GptOssConfig(**SIZES, head_dim=16, num_local_experts=4, num_experts_per_tok=2, swiglu_alpha=1.5)
    ),
    "phimoe": _phimoe,
}


def make_foreign_checkpoint(directory: Path, kind: str) -> PreTrainedModel:
    """Write a checkpoint of this kind (a key of SERVED or REFUSED); returns the model that it was made of."""
    model = (SERVED | REFUSED)[kind]().eval()
    randomise(model)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return model
