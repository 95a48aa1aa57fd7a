from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from app.checkpoints.gguf_config import generation_config, model_config
from app.checkpoints.gguf_metadata import read_gguf
from protocol.errors import CheckpointError
from tests.helpers.tiny_gguf import HIDDEN, Changes, metadata, write_gguf


def config_of(tmp_path: Path, architecture: str = "llama", changes: Changes | None = None, **more):
    return model_config(read_gguf(write_gguf(tmp_path / "m.gguf", architecture, changes, **more)))


def test_keys_become_hugging_face_names(tmp_path: Path):
    assert config_of(tmp_path, rows=450) == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 128,
        "vocab_size": 450,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def test_tensors_decide_on_tied_embeddings_and_biases(tmp_path: Path):
    head, bias = np.zeros((8, HIDDEN), np.float32), np.zeros(HIDDEN, np.float32)
    config = config_of(tmp_path, "qwen2", tensors={"output.weight": head, "blk.0.attn_q.bias": bias})
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert not config["tie_word_embeddings"]
    assert config["attention_bias"]


def test_the_head_dimension_may_differ_from_hidden_size_by_heads(tmp_path: Path):
    config = config_of(
        tmp_path,
        "qwen3",
        {f"qwen3.{key}": 32 for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")},
    )
    assert (config["model_type"], config["head_dim"]) == ("qwen3", 32)


def test_missing_optional_keys_take_the_formats_defaults(tmp_path: Path):
    config = config_of(tmp_path, changes={"llama.attention.head_count_kv": None, "llama.rope.freq_base": None})
    assert (config["num_key_value_heads"], config["rope_theta"]) == (4, 10000.0)


def test_linear_and_yarn_scaling_are_mapped(tmp_path: Path):
    linear = config_of(tmp_path, changes={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    assert linear["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    changes = {"type": "yarn", "factor": 4.0, "original_context_length": 32}
    yarn = config_of(tmp_path, changes={f"llama.rope.scaling.{key}": value for key, value in changes.items()})
    assert yarn["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def llama3_divisors(theta: float, dim: int, factor: float, low: float, high: float, original: int) -> np.ndarray:
    divisors = []
    for frequency in theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, dtype=np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_scaling_is_found_again_from_its_divisors(factor: float, tmp_path: Path):
    changes: Changes = {"llama.rope.freq_base": 500000.0, "llama.attention.key_length": 128}
    changes |= {"llama.attention.value_length": 128, "llama.rope.dimension_count": 128}
    tensors = {"rope_freqs.weight": llama3_divisors(500000.0, 128, factor, 1.0, 4.0, 8192)}
    assert config_of(tmp_path, changes=changes, tensors=tensors)["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    tensors = {"rope_freqs.weight": llama3_divisors(500000.0, 128, factor, 1.0, 2.0, 4096)}
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight are not those of Llama 3"):
        config_of(tmp_path, changes=changes, tensors=tensors)


REFUSED: list[tuple[Changes, str]] = [
    ({key: None}, f"the key {key} is missing")
    for key in metadata()
    if key.startswith("llama.") and not key.endswith(("freq_base", "head_count_kv"))
] + [
    ({"llama.expert_count": 8}, "the key llama.expert_used_count is missing"),
    ({"llama.expert_count": 8, "llama.expert_gating_func": 2}, "llama.expert_gating_func 2"),
    ({"llama.expert_count": 8, "llama.expert_group_count": 2}, "llama.expert_group_count = 2"),
    ({"llama.attention.sliding_window_pattern": 4}, "llama.attention.sliding_window_pattern = 4"),
    ({"llama.logit_scale": 0.5}, "llama.logit_scale"),
    ({"llama.attention.causal": False}, "llama.attention.causal"),
    ({"llama.attention.sliding_window": 16}, "llama.attention.sliding_window 16"),
    ({"llama.rope.dimension_count": 8}, "rope.dimension_count 8"),
    ({"llama.rope.scaling.type": "longrope"}, "llama.rope.scaling.type 'longrope'"),
    ({"llama.attention.head_count": [4, 2]}, "llama.attention.head_count differs between layers"),
    ({"llama.attention.head_count_kv": 3}, "head_count_kv is 3"),
    ({"llama.attention.head_count": 0}, "head_count is 0"),
    ({"llama.embedding_length": "64"}, "llama.embedding_length is '64', expected int"),
    ({"llama.embedding_length": 32}, r"token_embd.weight has the shape"),
    ({"split.count": 3}, "split.count"),
]


@pytest.mark.parametrize(("changes", "expected"), REFUSED, ids=[expected for _, expected in REFUSED])
def test_what_cannot_be_served_as_it_was_trained_is_refused_by_key(changes: Changes, expected: str, tmp_path: Path):
    with pytest.raises(CheckpointError) as caught:
        config_of(tmp_path, changes=changes)
    assert expected in caught.value.message
    assert "m.gguf" in caught.value.message


def test_another_architecture_is_refused_by_name(tmp_path: Path):
    with pytest.raises(
        CheckpointError, match=r"general\.architecture is 'mamba', expected one of llama, qwen2, .*, olmo2"
    ):
        config_of(tmp_path, "mamba")


def test_every_id_that_ends_an_answer_is_listed_once(tmp_path: Path):
    changes: Changes = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 2}
    gguf = read_gguf(write_gguf(tmp_path / "m.gguf", changes=changes))
    assert generation_config(gguf) == {"bos_token_id": 1, "eos_token_id": [2, 0]}
