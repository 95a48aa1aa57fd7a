"""config.json in its spellings, and what is refused by name."""

from __future__ import annotations

import json

import pytest
import torch

from gpu.config import ModelConfig
from gpu.rope_config import RopeConfig
from protocol.errors import CheckpointError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
GPT_OSS = {"architectures": ["GptOssForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2}


def refusal(**changes: object) -> str:
    with pytest.raises(CheckpointError) as caught:
        ModelConfig.from_dict(LLAMA | changes)
    return caught.value.message


def test_a_model_without_a_head_is_tied_and_one_that_looks_ahead_is_refused():
    config = ModelConfig.from_dict(LLAMA | {"architectures": ["Qwen3Model"], "tie_word_embeddings": False})
    assert (config.architecture, config.tie_word_embeddings) == ("Qwen3ForCausalLM", True)
    assert "is_causal is false" in refusal(is_causal=False)
    assert "BertModel" in refusal(architectures=["BertModel"])


def test_absent_keys_have_the_architectures_defaults():
    config = ModelConfig.from_dict(LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.windows) == (4, 8, (None, None))
    assert config.rope == RopeConfig(10000.0)
    assert config.tie_word_embeddings is None
    assert not config.qkv_bias
    assert ModelConfig.from_dict(LLAMA | {"architectures": ["Qwen2ForCausalLM"]}).qkv_bias
    assert ModelConfig.from_dict(LLAMA | {"architectures": ["Qwen3ForCausalLM"]}).qk_norm


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_theta": 5.0, "rope_scaling": {"rope_type": "linear", "factor": 2}},
        {"rope_theta": 5.0, "rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5.0}},
    ],
)
def test_rope_scaling_is_read_in_every_spelling(spelling):
    assert ModelConfig.from_dict(LLAMA | spelling).rope == RopeConfig(5.0, "linear", 2.0)


@pytest.mark.parametrize("spelling", [None, {}, {"type": "default"}, {"rope_type": "default"}])
def test_no_rope_scaling_is_read_in_every_spelling(spelling):
    assert ModelConfig.from_dict(LLAMA | {"rope_scaling": spelling}).rope == RopeConfig(10000.0)


def test_absent_original_length_is_the_models_own():
    scaling = {"rope_type": "llama3"} | {key: value for key, value in LLAMA3.items() if "original" not in key}
    assert ModelConfig.from_dict(LLAMA | {"rope_scaling": scaling}).rope.original_max_position_embeddings == 64


def test_linear_scaling_divides_the_frequencies():
    plain = RopeConfig(10000.0).inverse_frequencies(8)
    assert torch.equal(RopeConfig(10000.0, "linear", 4.0).inverse_frequencies(8), plain / 4)


def test_sliding_windows_are_those_that_the_architecture_uses():
    window = {"sliding_window": 7}
    qwen = {"architectures": ["Qwen2ForCausalLM"], **window}
    assert ModelConfig.from_dict(LLAMA | window).windows == (None, None)
    assert ModelConfig.from_dict(LLAMA | window | {"architectures": ["MistralForCausalLM"]}).windows == (7, 7)
    assert ModelConfig.from_dict(LLAMA | qwen).windows == (None, None)
    used = qwen | {"use_sliding_window": True, "max_window_layers": 1}
    assert ModelConfig.from_dict(LLAMA | used).windows == (None, 7)
    named = used | {"layer_types": ["sliding_attention", "full_attention"]}
    assert ModelConfig.from_dict(LLAMA | named).windows == (7, None)


def test_windows_of_every_nth_layer_are_left_out():
    gemma = LLAMA | {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 7, "num_hidden_layers": 3}
    assert ModelConfig.from_dict(gemma).windows == (7, None, 7)
    assert ModelConfig.from_dict(gemma | {"architectures": ["Gemma3ForCausalLM"]}).windows == (7, 7, 7)
    assert ModelConfig.from_dict(gemma | {"sliding_window_pattern": 3}).windows == (7, 7, None)


GEMMA3 = LLAMA | {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 7, "sliding_window_pattern": 2}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5.0, "rope_local_base_freq": 3.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 3.0},
            }
        },
    ],
)
def test_layers_with_a_window_may_have_a_rotation_of_their_own(spelling):
    config = ModelConfig.from_dict(GEMMA3 | spelling)
    assert [config.rope_of(layer) for layer in (0, 1)] == [RopeConfig(3.0), RopeConfig(5.0, "linear", 2.0)]


def test_the_longest_sequence_decides_between_short_and_long_frequencies():
    scaling = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    config = ModelConfig.from_dict(LLAMA | {"rope_scaling": scaling, "original_max_position_embeddings": 16})
    plain = RopeConfig(10000.0).inverse_frequencies(8)
    assert torch.equal(config.for_length(None).rope.inverse_frequencies(8), plain / 4)
    assert torch.equal(config.for_length(17).rope.inverse_frequencies(8), plain / 4)
    assert torch.equal(config.for_length(16).rope.inverse_frequencies(8), plain)


def test_dimensions_that_are_not_rotated_stand_behind_those_that_are():
    rope = RopeConfig(100.0, "longrope", partial_factor=0.5, attention_factor=1.5, short_factors=(1.0, 1.0))
    assert rope.head_order(8).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert rope.inverse_frequencies(8).tolist() == [1.0, pytest.approx(0.1), 0.0, 0.0]
    assert rope.magnitudes(8).tolist() == [1.5, 1.5, 1.0, 1.0]
    assert RopeConfig(1.0, interleaved=True).head_order(6).tolist() == [0, 2, 4, 1, 3, 5]
    assert RopeConfig(1.0).head_order(6) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": None}, "architectures [] is none"),
        ({"hidden_act": "relu6"}, "hidden_act 'relu6'"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({**GPT_OSS, "quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({**GPT_OSS, "swiglu_alpha": 1.5}, "swiglu_alpha 1.5"),
        ({**GPT_OSS, "swiglu_limit": 0}, "swiglu_limit is 0"),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor 0.4"),
        ({"rope_parameters": {"partial_rotary_factor": 1.5}}, "partial_rotary_factor 1.5"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rope_parameters by full_attention"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "longrope needs short_factor"),
        ({"rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [1]}}, "has 1 factors, and 4 pairs"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "num_experts is None"),
        (
            {"architectures": ["MixtralForCausalLM"], "num_local_experts": 2, "num_experts_per_tok": 3},
            "num_experts_per_tok 3 is above the number of experts 2",
        ),
        ({"architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": -1}, "attn_logit_softcapping is -1"),
        ({"query_pre_attn_scalar": "all"}, "query_pre_attn_scalar is 'all'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"type": "linear"}}, "linear needs factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3 needs low_freq_factor"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 0.5}}, "high_freq_factor 0.5"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"head_dim": 7}, "head_dim 7"),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["full_attention", "chunked"],
            },
            "layer_types",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes, words):
    assert words in refusal(**changes)


def test_a_file_that_is_missing_or_no_json_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        ModelConfig.read(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"config\.json is no JSON object"):
        ModelConfig.read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"vocab_size": -1}))
    with pytest.raises(CheckpointError, match=r"config\.json: vocab_size is -1"):
        ModelConfig.read(tmp_path)
