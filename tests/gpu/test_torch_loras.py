"""Adapters beside the decoder in torch: PEFT's logits for every kind of layer, each sequence with its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from app.checkpoints.gguf_checkpoint import open_gguf
from gpu.config import ModelConfig
from gpu.layers.fixed_rows import FixedRowsLinear
from gpu.layers.linear import PlainLinear
from gpu.layers.lora import AdaptedStep, LoraLinear
from gpu.load_model import load_model
from gpu.lora_checkpoint import read_adapter
from gpu.lora_modules import lora_modules
from gpu.model import Model
from gpu.torch_model import TorchModel
from gpu.torch_runner import TorchRunner
from protocol.errors import BadRequestError, ConflictError, StartError
from protocol.ids import EngineIndex, Epoch, Slot
from protocol.lora import NO_LORA, LoraId, LoraRequest
from protocol.operations import SleepTag
from protocol.spec import EngineSpec
from protocol.step import Row
from tests.helpers.adapter_conformance import check_adapters
from tests.helpers.adapters import write_adapter
from tests.helpers.foreign_checkpoints import make_foreign_checkpoint
from tests.helpers.gguf_models import write_model
from tests.helpers.peft_adapters import EVERY, SOME, PeftOracle
from tests.helpers.runner_conformance import Driver, params
from tests.helpers.stand_in_device import Recorder, device_model
from tests.helpers.tiny_checkpoints import VOCAB_SIZE, make_checkpoint

ATTENTION = {"r": 5, "lora_alpha": 10, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
FUSED = {"r": 6, "lora_alpha": 3, "target_modules": ["qkv_proj", "down_proj"]}
FEW = {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "o_proj"]}
KINDS = {
    "llama_biases": (EVERY, SOME),
    "qwen3": (EVERY, SOME),
    "gemma2": (EVERY, SOME),
    "glm4": (EVERY, SOME),
    "phi3_sliding": (EVERY, FUSED),
    "qwen2_moe": (ATTENTION, SOME),
    "gpt_oss": (ATTENTION, FEW),
}
"""Each with other projections, in another order or place, to two adapters."""
IDS = {"first": LoraId(7), "second": LoraId(2**63 - 1), None: NO_LORA}


def spec(checkpoint: Path, **changes: object) -> EngineSpec:
    sizes = {"block_size": 4, "num_gpu_blocks_override": 120, "device": "cpu", "threads": 1, "max_loras": 2} | changes
    return EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), **sizes)


def load(checkpoint: Path, oracle: PeftOracle, **changes: object) -> Model:
    model, _ = load_model(spec(checkpoint, **changes), lambda _: None)
    return with_adapters(model, oracle)


@torch.inference_mode()
def with_adapters(model: Model, oracle: PeftOracle) -> Model:
    for name in oracle.model.peft_config:
        model.add_lora(IDS[name], read_adapter(oracle.path(name), model.lora_modules, 8))
    return model


def prompt(length: int) -> list[int]:
    return [(7 * i * i + 3 * i + length) % VOCAB_SIZE for i in range(length)]


@torch.inference_mode()
def logits_in_steps(model: Model, prompts: dict[str | None, list[int]], steps: tuple[int, ...]) -> dict:
    """Of all positions of each sequence, by its adapter, all together in steps that end at these lengths."""
    found: dict[str | None, list[torch.Tensor]] = {name: [] for name in prompts}
    start = 0
    for end in steps:
        rows = [
            Row(Slot(i), start, token_ids[start:end], list(range(i * 12, i * 12 + 12)), True)
            for i, token_ids in enumerate(prompts.values())
        ]
        computed = model.compute(rows, [IDS[name] for name in prompts])
        logits = model.logits(computed.hidden)
        for name, first in zip(prompts, computed.first_token, strict=True):
            found[name].append(logits[first : first + end - start].clone())
        start = end
    return {name: torch.cat(parts) for name, parts in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_two_adapters_and_none_gives_pefts_logits(kind, tmp_path):
    first, second = KINDS[kind]
    oracle = PeftOracle(make_checkpoint(tmp_path / "model", kind), tmp_path / "adapters", first=first, second=second)
    model = load(tmp_path / "model", oracle)
    assert isinstance(model, TorchModel)
    prompts = {name: prompt(40 + i) for i, name in enumerate(("second", None, "first"))}
    for name, found in logits_in_steps(model, prompts, (3, 38, 39, 40)).items():
        expected = oracle.logits(name, prompts[name][:40])
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)
        if name is not None:
            assert (expected - oracle.logits(None, prompts[name][:40])).norm() > 0.1 * expected.norm()


def test_linears_of_experts_are_left_alone(tmp_path):
    make_checkpoint(tmp_path, "qwen3_moe")  # whose second layer has none
    mlps = {name for name in lora_modules(ModelConfig.read(tmp_path)) if ".mlp." in name}
    assert mlps == {f"model.layers.1.mlp.{name}_proj" for name in ("gate", "up", "down")}


def test_an_adapter_of_stacked_experts_is_refused_by_name(tmp_path):
    make_checkpoint(tmp_path / "model", "gpt_oss")
    modules = lora_modules(ModelConfig.read(tmp_path / "model"))
    write_adapter(tmp_path / "adapter", {"model.layers.0.mlp.experts": (64, 64)})
    with pytest.raises(BadRequestError, match=r"layers\.0\.mlp\.experts.* is for none of .*: k_proj, o_proj, q_proj"):
        read_adapter(tmp_path / "adapter", modules, 8)


def test_an_adapter_gives_what_merging_it_gives(tmp_path):
    oracle = PeftOracle(make_checkpoint(tmp_path / "model", "llama"), tmp_path / "adapters", first=EVERY)
    model = load(tmp_path / "model", oracle)
    found = logits_in_steps(model, {"first": prompt(30)}, (30,))["first"]
    torch.testing.assert_close(found, oracle.merged_logits("first", prompt(30)), atol=1e-4, rtol=1e-3)


def test_an_adapter_fits_the_same_model_in_gguf(tmp_path):
    """Whose queries and keys have another order."""
    reference = make_checkpoint(tmp_path / "model", "llama")
    write_model(tmp_path / "model.gguf", tmp_path / "model", "llama")
    oracle = PeftOracle(reference, tmp_path / "adapters", first=EVERY)
    model = load(open_gguf(tmp_path / "model.gguf", tmp_path / "cache", lambda *_: None), oracle)
    found = logits_in_steps(model, {"first": prompt(30)}, (30,))["first"]
    torch.testing.assert_close(found, oracle.logits("first", prompt(30)), atol=1e-4, rtol=1e-3)


def test_an_adapter_that_was_removed_leaves_nothing(tmp_path):
    oracle = PeftOracle(make_checkpoint(tmp_path / "model", "llama"), tmp_path / "adapters", first=EVERY, second=SOME)
    model = load(tmp_path / "model", oracle)
    model.remove_lora(IDS["first"])
    with torch.inference_mode():
        model.add_lora(IDS["first"], read_adapter(oracle.path("second"), model.lora_modules, 8))
    found = logits_in_steps(model, {"first": prompt(30)}, (30,))["first"]
    torch.testing.assert_close(found, oracle.logits("second", prompt(30)), atol=1e-4, rtol=1e-3)


def test_steps_with_adapters_are_not_run_as_graphs(tmp_path):
    oracle = PeftOracle(make_checkpoint(tmp_path / "model", "llama"), tmp_path / "adapters", first=EVERY)
    recorder = Recorder()
    model = with_adapters(device_model(tmp_path / "model", capture=recorder, max_loras=1), oracle)
    for name, replays in (("first", 1), (None, 3)):  # one is the trial
        found = logits_in_steps(model, {name: prompt(10)}, (8, 9, 10))[name]
        torch.testing.assert_close(found, oracle.logits(name, prompt(10)), atol=2e-4, rtol=1e-3)
        assert recorder.replayed == replays


def test_adapters_are_computed_with_fixed_rows_where_the_rest_is():
    weight = torch.zeros(4, 4)
    adapted = LoraLinear(FixedRowsLinear(PlainLinear(weight, None)), AdaptedStep())
    assert isinstance(adapted.make(weight), FixedRowsLinear)


def test_a_model_in_transformers_code_is_not_started_with_adapters(tmp_path):
    make_foreign_checkpoint(tmp_path, "opt")
    with pytest.raises(StartError, match="--enable-lora is not for models that are computed with transformers' code"):
        load_model(spec(tmp_path), lambda _: None)


def random_adapters(directory: Path, model: PreTrainedModel) -> list[Path]:
    """Three that change some projections of every layer."""
    shapes = {
        name: tuple(module.weight.shape)
        for name, module in model.named_modules()
        if name.endswith(("q_proj", "up_proj"))
    }
    return [write_adapter(directory / str(seed), shapes, seed=seed) for seed in range(3)]


def test_the_runner_keeps_adapters(tmp_path):
    adapters = random_adapters(tmp_path / "adapters", make_checkpoint(tmp_path / "model", "llama"))
    check_adapters(TorchRunner.load(spec(tmp_path / "model"), lambda _: None), adapters)


def test_without_memory_for_its_adapters_the_runner_sleeps_on(tmp_path, monkeypatch):
    """Rather than computing without them."""

    def refuse(*_: object) -> None:
        raise MemoryError("not that much")

    path = random_adapters(tmp_path / "adapters", make_checkpoint(tmp_path / "model", "llama"))[0]
    runner = TorchRunner.load(spec(tmp_path / "model"), lambda _: None)
    one = LoraRequest("one", LoraId(5), str(path))
    with monkeypatch.context() as patch, pytest.raises(ConflictError, match="for adapter 'one': not that much"):
        patch.setattr(TorchModel, "add_lora", refuse)
        runner.add_lora(one, runner.read_adapter(path))
    assert runner.loras() == []
    runner.add_lora(one, runner.read_adapter(path))
    driver = Driver(runner)
    expected = driver.admit(0, prompt(10), params(6), lora_id=LoraId(5))
    driver.run(expected)
    driver.free(expected)
    runner.sleep(2)
    with monkeypatch.context() as patch, pytest.raises(ConflictError, match="not that much"):
        patch.setattr(TorchModel, "add_lora", refuse)
        runner.wake(list(SleepTag))
    assert runner.wake(list(SleepTag)) == []
    again = driver.admit(1, prompt(10), params(6), lora_id=LoraId(5))
    assert driver.run(again) == [expected.output]
