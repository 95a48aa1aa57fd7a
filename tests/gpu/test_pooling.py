"""What becomes of a prompt that is pooled, against transformers' hidden states pooled by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from app.settings import default_cache_directory
from gpu.torch_runner import TorchRunner
from protocol.ids import EngineIndex, Epoch, Slot
from protocol.pooling import Pooling, PoolingParams
from protocol.spec import EngineSpec
from tests.helpers import foreign_checkpoints, tiny_checkpoints, wide_checkpoints
from tests.helpers.runner_conformance import Driver, params, vector_of

LENGTHS = (1, 2, 16, 17, 70)


def load(checkpoint: Path, **changes: object) -> TorchRunner:
    cache = str(default_cache_directory())
    sizes = {"num_gpu_blocks_override": 120, "device": "cpu", "threads": 1, "cache_directory": cache} | changes
    return TorchRunner.load(EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), **sizes), lambda _: None)


def prompt(length: int, vocab_size: int = tiny_checkpoints.VOCAB_SIZE) -> list[int]:
    return [(7 * i * i + 3 * i + length) % vocab_size for i in range(length)]


def by_hand(model: PreTrainedModel, token_ids: list[int], kind: Pooling) -> torch.Tensor:
    with torch.inference_mode():
        states = model.base_model(torch.tensor([token_ids])).last_hidden_state[0].double()
    return {Pooling.LAST: states[-1], Pooling.CLS: states[0], Pooling.MEAN: states.mean(dim=0)}[kind]


def assert_as_transformers(runner: TorchRunner, model: PreTrainedModel, chunk: int, tolerance: float) -> None:
    driver = Driver(runner)
    prompts = [prompt(length, runner.facts.vocab_size) for length in LENGTHS]
    for kind in Pooling:
        wish = PoolingParams(kind, normalize=False)
        vectors = driver.pool(*[driver.admit_to_pool(i, ids, wish) for i, ids in enumerate(prompts)], chunk=chunk)
        for token_ids, values in zip(prompts, vectors, strict=True):
            found, expected = torch.tensor(vector_of(values)).double(), by_hand(model, token_ids, kind)
            assert runner.facts.hidden_size == len(found)
            assert (found - expected).norm() < tolerance * expected.norm(), (kind, len(token_ids))


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("kind", ["mistral_sliding", "qwen3", "gemma2"])
def test_vectors_are_those_of_transformers(tmp_path, kind, chunk):
    model = tiny_checkpoints.make_checkpoint(tmp_path, kind)
    assert_as_transformers(load(tmp_path, block_size=4), model, chunk, 1e-4)


@pytest.mark.parametrize("kind", ["mistral_sliding", "qwen3"])
def test_a_model_that_was_saved_without_its_head_gives_the_same_vectors(tmp_path, kind):
    """As sentence-transformers saves them."""
    model = tiny_checkpoints.make_checkpoint(tmp_path, kind)
    (tmp_path / "model.safetensors").unlink()
    model.base_model.save_pretrained(tmp_path, max_shard_size="50kB")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == [type(model.base_model).__name__]
    assert_as_transformers(load(tmp_path, block_size=4), model, 7, 1e-4)


def test_vectors_of_a_model_that_transformers_computes_are_those_of_transformers(tmp_path):
    model = foreign_checkpoints.make_foreign_checkpoint(tmp_path, "gpt_neox")
    assert_as_transformers(load(tmp_path, block_size=4), model, 7, 1e-4)


def test_vectors_of_the_kernels_are_those_of_transformers(tmp_path):
    model = wide_checkpoints.make_checkpoint(tmp_path, "mistral_sliding", torch.bfloat16)
    runner = load(tmp_path)
    assert_as_transformers(runner, model, 19, 5e-3)  # of the cache in float16
    runner.close()


def test_the_kernels_give_the_same_bits_in_any_chunks_and_company(tmp_path):
    wide_checkpoints.make_checkpoint(tmp_path, "mistral_sliding", torch.bfloat16)
    driver = Driver(load(tmp_path, threads=2))
    kinds = [*Pooling, Pooling.MEAN]
    cases = [(prompt(length), PoolingParams(kind)) for length, kind in zip((1, 17, 140, 66), kinds, strict=True)]
    alone = [driver.pool(driver.admit_to_pool(0, *case))[0] for case in cases]
    beside = driver.admit(5, prompt(20), params(200))
    driver.step((beside, 20))
    for chunk in (1, 19, 64, 65, 1000):
        sequences = [driver.admit_to_pool(slot, *case) for slot, case in enumerate(cases)]
        driver.step((beside, 1), *[(each, min(chunk, len(each.prompt))) for each in sequences])
        assert driver.pool(*sequences, chunk=chunk) == alone, chunk


def test_a_vector_of_hidden_states_that_are_no_numbers_fails_alone(tmp_path):
    tiny_checkpoints.make_checkpoint(tmp_path, "llama")
    runner = load(tmp_path, block_size=4)
    with torch.inference_mode():
        runner._model.decoder.embedding[319] = math.nan
    driver = Driver(runner)
    good = driver.admit_to_pool(0, [5, 6, 7], PoolingParams(Pooling.MEAN))
    bad = driver.admit_to_pool(1, [319, 6, 7], PoolingParams(Pooling.MEAN))
    result = driver.step((good, 3), (bad, 3))
    assert [(one.slot, one.error is None) for one in result.pooled] == [(Slot(0), True), (Slot(1), False)]
    assert result.pooled[1].error == "the model's hidden states are not finite"
    assert math.hypot(*vector_of(result.pooled[0].values)) == pytest.approx(1)


def test_who_is_computed_again_begins_the_sum_anew(tmp_path):
    tiny_checkpoints.make_checkpoint(tmp_path, "llama")
    driver = Driver(load(tmp_path, block_size=4))
    wish = PoolingParams(Pooling.MEAN)
    (expected,) = driver.pool(driver.admit_to_pool(0, prompt(30), wish))
    preempted = driver.admit_to_pool(0, prompt(30), wish)
    driver.step((preempted, 11))
    driver.free(preempted)
    (found,) = driver.pool(driver.admit_to_pool(0, prompt(30), wish), chunk=30)
    assert found == expected
