"""Every kind of model, through step plans, against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpu.torch_runner import TorchRunner
from protocol.ids import EngineIndex, Epoch
from protocol.messages import TokenLogprobs
from protocol.spec import EngineSpec
from tests.helpers.runner_conformance import Driven, Driver, check_runner, params
from tests.helpers.tiny_checkpoints import MODELS, VOCAB_SIZE, make_checkpoint, phi3_longrope, save_checkpoint

CONFORMING = ("llama", "mistral_sliding", "qwen3", "gemma2", "qwen2_moe")
"""Each with another way through attention or feed-forward."""


def spec(checkpoint: Path, **changes: object) -> EngineSpec:
    sizes = {"block_size": 4, "num_gpu_blocks_override": 120, "device": "cpu", "threads": 1} | changes
    return EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), **sizes)


def ignore(progress: float) -> None:
    pass


@pytest.fixture(scope="module", params=sorted(MODELS))
def kind(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    return directory, make_checkpoint(directory, request.param)


def distribution(logprobs: TokenLogprobs) -> torch.Tensor:
    """All log-probabilities by token id, from a position that was asked for as many as there are tokens."""
    found = torch.empty(VOCAB_SIZE)
    found[logprobs.token_ids[1:]] = torch.tensor(logprobs.logprobs[1:])
    return found


def assert_as_transformers(sequence: Driven, model: torch.nn.Module) -> None:
    with torch.inference_mode():
        expected = model(torch.tensor([sequence.tokens[:-1]])).logits[0].log_softmax(dim=-1)
    ours = sequence.prompt_logprobs + [sampled.logprobs for sampled in sequence.sampled]
    torch.testing.assert_close(torch.stack([distribution(row) for row in ours]), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_logits_equal_transformers_in_chunks_and_mixed_rows(kind, chunk):
    directory, model = kind
    driver = Driver(TorchRunner.load(spec(directory), ignore))
    wish = params(6, logprobs=VOCAB_SIZE, prompt_logprobs=VOCAB_SIZE)
    prompts = [[(7 * i * i + 3 * i + length) % VOCAB_SIZE for i in range(length)] for length in (2, 15, 16, 17, 70)]
    sequences = [driver.admit(slot, prompt, wish) for slot, prompt in enumerate(prompts)]
    driver.run(*sequences, chunk=chunk)
    for sequence in sequences:
        assert_as_transformers(sequence, model)


def test_sequence_that_joins_later_shares_steps_with_decoding_ones(kind):
    directory, model = kind
    driver = Driver(TorchRunner.load(spec(directory), ignore))
    wish = params(20, logprobs=VOCAB_SIZE, prompt_logprobs=VOCAB_SIZE)
    first = driver.admit(0, list(range(40)), wish)
    second = driver.admit(1, list(range(100, 123)), wish)
    driver.step((first, 40))
    for chunk in (9, 9, 5):
        driver.step((second, chunk), (first, 1))
    driver.run(first, second)
    assert_as_transformers(first, model)
    assert_as_transformers(second, model)


@pytest.mark.parametrize(("max_model_len", "length"), [(64, 50), (256, 70)])
def test_longrope_is_transformers_for_the_longest_sequence_that_may_come(tmp_path, max_model_len, length):
    """transformers chooses by each call's longest sequence."""
    model = save_checkpoint(tmp_path, phi3_longrope(original=64))
    driver = Driver(TorchRunner.load(spec(tmp_path, max_model_len=max_model_len), ignore))
    wish = params(6, logprobs=VOCAB_SIZE, prompt_logprobs=VOCAB_SIZE)
    sequence = driver.admit(0, [(7 * i * i + 3 * i) % VOCAB_SIZE for i in range(length)], wish)
    driver.run(sequence, chunk=16)
    assert_as_transformers(sequence, model)


@pytest.mark.parametrize("kind", CONFORMING, indirect=True)
def test_runner_conforms(kind):
    directory, _ = kind
    check_runner(lambda: TorchRunner.load(spec(directory), ignore))
