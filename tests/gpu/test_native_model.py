"""The model on the CPU's kernels: right for every kind and format, and the same to the last bit in any company."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.settings import default_cache_directory
from gpu.load_model import load_model
from gpu.native_model import NativeModel
from gpu.torch_model import TorchModel
from gpu.torch_runner import TorchRunner
from protocol.errors import CheckpointError
from protocol.ids import EngineIndex, Epoch, Slot
from protocol.spec import EngineSpec
from protocol.step import Row
from tests.helpers.runner_conformance import Driver, check_runner, params
from tests.helpers.wide_checkpoints import MODELS, VOCAB_SIZE, make_checkpoint, make_quantised_checkpoint

MIXED = {"": "Q4_K", "v_proj.weight": "Q6_K", "down_proj.weight": "Q6_K", "embed_tokens.weight": "Q6_K"}
"""As llama.cpp's Q4_K_M has them."""
TABLE = [11, 3, 7, 1, 20, 9, 14, 0, 5, 6, 8, 13, 12, 2, 4, 10]


def spec(checkpoint: Path, **changes: object) -> EngineSpec:
    sizes = {"num_gpu_blocks_override": 100, "device": "cpu", "threads": 1} | changes
    cache = str(default_cache_directory())
    return EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), cache_directory=cache, **sizes)


def ignore(progress: float) -> None:
    pass


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(7 * i * i + 3 * i + length + salt) % VOCAB_SIZE for i in range(length)]


def row(start: int, token_ids: list[int], blocks: list[int] = TABLE) -> Row:
    return Row(Slot(0), start, token_ids, blocks, True)


def logits_of(model: NativeModel | TorchModel, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model.logits(model.compute([row(0, token_ids)]).hidden).clone()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", MODELS)
def test_weights_of_16_bits_give_transformers_logits(kind, dtype, tmp_path):
    reference = make_checkpoint(tmp_path, kind, dtype)
    model, _ = load_model(spec(tmp_path), ignore)
    assert isinstance(model, NativeModel)
    assert model.dtype == {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
    token_ids = prompt(150)
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0]
    error = (logits_of(model, token_ids) - expected).norm(dim=1) / expected.norm(dim=1)
    assert error.max() < 5e-3  # of the cache in float16
    model.close()


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize(
    "kinds", [{"": "Q4_0"}, {"": "Q4_1", "embed_tokens.weight": "Q8_0"}, {"": "Q5_K"}, MIXED, {"": "F16"}]
)
def test_quantised_weights_give_what_float32_gives(kinds, architecture, tmp_path):
    make_quantised_checkpoint(tmp_path, kinds, architecture)
    model, _ = load_model(spec(tmp_path), ignore)
    assert isinstance(model, NativeModel)
    assert model.dtype == kinds[""].lower()
    exact, _ = load_model(spec(tmp_path, dtype="float32"), ignore)
    assert isinstance(exact, TorchModel)
    found, expected = logits_of(model, prompt(150)), logits_of(exact, prompt(150))
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert error.median() < 2e-3  # of the cache in float16; random weights attend sharply, so that tokens may flip
    model.close()


def test_int8_is_coarser(tmp_path):
    make_quantised_checkpoint(tmp_path, MIXED)
    model, _ = load_model(spec(tmp_path, dtype="int8"), ignore)
    exact, _ = load_model(spec(tmp_path, dtype="float32"), ignore)
    found, expected = logits_of(model, prompt(150)), logits_of(exact, prompt(150))
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert 5e-3 < error.median() < 0.05
    model.close()


def test_int8_is_refused_where_there_are_no_kernels(tmp_path):
    make_quantised_checkpoint(tmp_path, MIXED)
    with pytest.raises(CheckpointError, match="--dtype int8 is only for models that the CPU kernels compute"):
        load_model(spec(tmp_path, dtype="int8", block_size=8), ignore)


@pytest.fixture(scope="module", params=["mixed", "bf16"])
def checkpoint(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "mixed":
        make_quantised_checkpoint(directory, MIXED)
    else:
        make_checkpoint(directory, "mistral_sliding", torch.bfloat16)
    return directory


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(spec(checkpoint), ignore)[0]


@settings(max_examples=25)
@given(data=st.data())
def test_logits_depend_on_no_chunking_no_company_and_no_thread(checkpoint, model, data):
    threads = data.draw(st.integers(1, 3))
    lengths = data.draw(st.lists(st.integers(1, 200), min_size=1, max_size=4))
    crowd, _ = load_model(spec(checkpoint, threads=threads), ignore)
    prompts = [prompt(length, salt) for salt, length in enumerate(lengths)]
    tables = [list(range(20 * i, 20 * i + 20)) for i in range(len(lengths))]
    found: list[list[torch.Tensor]] = [[] for _ in lengths]
    done = [0] * len(lengths)
    while unfinished := [i for i, length in enumerate(lengths) if done[i] < length]:
        rows = []
        for i in unfinished:
            left = lengths[i] - done[i]
            count = data.draw(st.integers(1, left) | st.just(max(1, left - 3)) if left > 3 else st.just(1))
            rows.append(row(done[i], prompts[i][done[i] : done[i] + count], tables[i]))
        with torch.inference_mode():
            computed = crowd.compute(rows)
            logits = crowd.logits(computed.hidden)
        for i, one, first in zip(unfinished, rows, computed.first_token, strict=True):
            found[i].append(logits[first : first + len(one.token_ids)].clone())
            done[i] += len(one.token_ids)
    crowd.close()
    for token_ids, parts in zip(prompts, found, strict=True):
        assert torch.equal(torch.cat(parts), logits_of(model, token_ids))


def test_runner_conforms(checkpoint):
    check_runner(lambda: TorchRunner.load(spec(checkpoint), ignore))


def test_sampled_tokens_are_the_same_in_any_company(checkpoint):
    wish = params(8, temperature=0.8, logprobs=3)
    prompts = [prompt(length) for length in (1, 2, 15, 16, 17, 33, 64, 130)]
    driver = Driver(TorchRunner.load(spec(checkpoint, threads=2), ignore))
    sequences = [driver.admit(slot, token_ids, wish) for slot, token_ids in enumerate(prompts)]
    driver.run(*sequences, chunk=19)
    for together in sequences:
        lonely = Driver(TorchRunner.load(spec(checkpoint), ignore))
        alone = lonely.admit(0, together.prompt, wish)
        lonely.run(alone)
        assert alone.sampled == [
            type(sampled)(Slot(0), sampled.token_id, sampled.logprobs, sampled.error) for sampled in together.sampled
        ]


def test_a_row_that_turns_to_nan_breaks_no_other(model):
    whole = logits_of(model, prompt(20))
    poisoned = model._weights.embedding.data
    model._weights.layers[0].attention_norm[:] *= 1  # the vectors are writable, the mapped matrices are not
    assert not poisoned.flags.writeable
    with torch.inference_mode():
        computed = model.compute([row(0, [5] * 3, [30]), row(0, prompt(20))])
        computed.hidden[1] = float("nan")
        logits = model.logits(computed.hidden)
    assert logits[1].isnan().all()
    assert torch.equal(logits[3:], whole)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"block_size": 8}, "block_size 8 is no multiple of 16"), ({"dtype": "float32"}, "")],
)
def test_what_the_kernels_do_not_do_is_left_to_torch(checkpoint, changes, reason, caplog):
    with caplog.at_level(logging.INFO):
        model, _ = load_model(spec(checkpoint, **changes), ignore)
    assert isinstance(model, TorchModel)
    assert model.dtype == "float32"
    assert reason in caplog.text


def test_without_a_compiler_torch_computes(checkpoint, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    model, _ = load_model(spec(checkpoint), ignore)
    assert isinstance(model, TorchModel)
    assert "no C++ compiler is installed" in caplog.text
