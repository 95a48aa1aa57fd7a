"""Experts that lie stacked in one tensor, whole and in MXFP4, against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from gpu.config import ModelConfig
from gpu.native_plan import why_not
from gpu.stacked_experts import StackedExperts, from_mxfp4
from gpu.torch_runner import TorchRunner
from gpu.weight_files import SINGLE
from gpu.weights import open_weights
from protocol.errors import CheckpointError
from tests.gpu.test_models import assert_as_transformers, ignore, spec
from tests.helpers.runner_conformance import Driver, params
from tests.helpers.tiny_checkpoints import VOCAB_SIZE, gpt_oss, save_checkpoint

EXPERTS = "model.layers.0.mlp.experts"


def quantised(directory: Path) -> PreTrainedModel:
    """A checkpoint whose experts are random MXFP4, and the model that transformers makes of them."""
    model = save_checkpoint(directory, gpt_oss())
    tensors = load_file(directory / SINGLE)
    generator = torch.Generator().manual_seed(5)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(121, 126, shape, dtype=torch.uint8, generator=generator)
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
        with torch.no_grad():
            model.get_parameter(name).copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, directory / SINGLE)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (directory / "config.json").write_text(json.dumps(config))
    return model


def change(directory: Path, **tensors: torch.Tensor | None) -> None:
    """Put these into the place of the first layer's experts' tensors, None to take them away."""
    found = load_file(directory / SINGLE)
    for name, tensor in tensors.items():
        found.pop(f"{EXPERTS}.{name}")
        if tensor is not None:
            found[f"{EXPERTS}.{name}"] = tensor
    save_file(found, directory / SINGLE)


def test_mxfp4_is_transformers_for_every_byte_and_scale():
    blocks = torch.arange(256, dtype=torch.uint8).repeat(16).view(1, 256, 1, 16)
    blocks = (blocks + torch.arange(16, dtype=torch.uint8)).contiguous()
    scales = torch.arange(256, dtype=torch.uint8).clamp(max=250).view(1, 256, 1)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)[0].t()
    torch.testing.assert_close(from_mxfp4(blocks[0], scales[0]), expected, atol=0.0, rtol=0.0)


@pytest.mark.parametrize("chunk", [7, 1000])
def test_mxfp4_model_is_transformers_beyond_its_window_in_chunks_and_batches(tmp_path, chunk):
    model = quantised(tmp_path)
    driver = Driver(TorchRunner.load(spec(tmp_path), ignore))
    wish = params(6, logprobs=VOCAB_SIZE, prompt_logprobs=VOCAB_SIZE)
    prompts = [[(5 * i * i + i + length) % VOCAB_SIZE for i in range(length)] for length in (3, 40, 71)]
    sequences = [driver.admit(slot, prompt, wish) for slot, prompt in enumerate(prompts)]
    driver.run(*sequences, chunk=chunk)
    for sequence in sequences:
        assert_as_transformers(sequence, model)


def test_progress_of_loading_reaches_what_lies_in_the_file(tmp_path):
    quantised(tmp_path)
    reported: list[float] = []
    TorchRunner.load(spec(tmp_path), reported.append)
    assert reported == sorted(reported)
    assert reported[-1] > 0.95


def test_expert_is_read_by_the_name_of_a_single_one(tmp_path):
    model = save_checkpoint(tmp_path, gpt_oss())
    source = open_weights(tmp_path)
    assert isinstance(source, StackedExperts)
    theirs = model.model.layers[0].mlp.experts
    up, bias = torch.empty(32, 64), torch.empty(32)
    source.read(f"{EXPERTS}.3.up_proj.weight", up)
    source.read(f"{EXPERTS}.3.gate_proj.bias", bias)
    assert torch.equal(up, theirs.gate_up_proj[3][:, 1::2].t())
    assert torch.equal(bias, theirs.gate_up_proj_bias[3][0::2])


def test_kernels_say_what_they_do_not_compute(tmp_path):
    quantised(tmp_path)
    assert why_not(ModelConfig.read(tmp_path), 16) == (
        "GptOssForCausalLM has sinks and experts, which the kernels do not compute"
    )


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"down_proj_scales": None}, "experts.down_proj_scales of shape .64, 1. is missing"),
        ({"down_proj_blocks": torch.zeros(4, 64, 1, 16, dtype=torch.uint8)}, r"asks for \[64, 1, 16\] of expert 4"),
        ({"gate_up_proj_scales": torch.zeros(5, 64, 1, dtype=torch.uint8)}, r"asks for \[64, 2\]"),
        ({"gate_up_proj_scales": torch.zeros(5, 64, 2)}, "has type torch.float32"),
    ],
)
def test_damaged_stack_is_refused_by_name(tmp_path, tensors, message):
    quantised(tmp_path)
    change(tmp_path, **tensors)
    with pytest.raises(CheckpointError, match=message):
        TorchRunner.load(spec(tmp_path), ignore)
