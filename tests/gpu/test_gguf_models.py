"""Models of every architecture in GGUF give what their safetensors give, through the conversion in the cache."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch

from app.checkpoints.gguf_checkpoint import open_gguf
from gpu.config import ModelConfig
from gpu.gguf_weights import GgufWeights
from gpu.torch_runner import TorchRunner
from protocol.errors import CheckpointError
from protocol.ids import EngineIndex, Epoch
from protocol.spec import EngineSpec
from tests.helpers.gguf_models import KINDS, write_model
from tests.helpers.runner_conformance import Driver, params
from tests.helpers.tiny_checkpoints import save_checkpoint


def ignore(*progress: object) -> None:
    pass


def logprobs_of(checkpoint: Path) -> torch.Tensor:
    """Of a prompt's tokens and of those that follow it, with the 5 most likely ones at each position."""
    spec = EngineSpec(
        EngineIndex(0), Epoch(1), "", {}, str(checkpoint), device="cpu", threads=1, num_gpu_blocks_override=8
    )
    driver = Driver(TorchRunner.load(spec, ignore))
    sequence = driver.admit(0, list(range(20)), params(6, logprobs=5, prompt_logprobs=5))
    driver.run(sequence)
    rows = sequence.prompt_logprobs + [sampled.logprobs for sampled in sequence.sampled]
    return torch.tensor([[*row.token_ids, *row.logprobs] for row in rows])


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_in_gguf_gives_what_its_safetensors_give(tmp_path, kind):
    architecture, make = KINDS[kind]
    checkpoint, file = tmp_path / "checkpoint", tmp_path / "model.gguf"
    save_checkpoint(checkpoint, make())
    write_model(file, checkpoint, architecture)
    converted = open_gguf(file, tmp_path / "cache", ignore)
    original = ModelConfig.read(checkpoint)
    found = ModelConfig.read(converted)
    # What the file does not tell, or tells as float32.
    told = attrs.evolve(found, dtype=original.dtype, rms_norm_eps=original.rms_norm_eps)
    told = attrs.evolve(told, tie_word_embeddings=original.tie_word_embeddings)
    assert told == original
    torch.testing.assert_close(logprobs_of(converted), logprobs_of(checkpoint), atol=1e-4, rtol=1e-4)


def test_an_expert_that_is_not_there_is_named(tmp_path):
    checkpoint, file = tmp_path / "checkpoint", tmp_path / "model.gguf"
    save_checkpoint(checkpoint, KINDS["qwen3_moe"][1]())
    write_model(file, checkpoint, "qwen3moe")
    weights = GgufWeights.open(open_gguf(file, tmp_path / "cache", ignore) / "gguf.json")
    weights.read("model.layers.0.mlp.experts.5.up_proj.weight", torch.empty(24, 48))
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up_exps\.weight has shape \[0, 24, 48\]"):
        weights.read("model.layers.0.mlp.experts.6.up_proj.weight", torch.empty(24, 48))
