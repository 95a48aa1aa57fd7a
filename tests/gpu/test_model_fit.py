"""What `trillm check` says of a model's size is what loading it comes to, without loading it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpu import model_fit as fitting
from gpu.kernels.laid_out_file import files_digest
from gpu.load_model import load_model
from gpu.model_fit import KERNELS, model_fit
from protocol.errors import CheckpointError, StartError, UnknownVariantError
from protocol.ids import EngineIndex, Epoch
from protocol.parallel import ParallelSpec
from protocol.spec import EngineSpec
from tests.helpers import wide_checkpoints
from tests.helpers.tiny_checkpoints import make_checkpoint


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_checkpoint(directory, "qwen3")
    return directory


def spec(checkpoint: Path, **changes: object) -> EngineSpec:
    return EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), **({"device": "cpu", "threads": 1} | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_cache_memory_bytes": 100_000},
        {"num_gpu_blocks_override": 3},
        {"kv_cache_memory_bytes": 100_000, "kv_cache_dtype": "fp8", "max_model_len": 40},
        {"kv_cache_memory_bytes": 100_000, "dtype": "bfloat16", "block_size": 32},
    ],
)
def test_it_is_what_loading_would_give(tiny, changes):
    asked = spec(tiny, **({"dtype": "float32"} | changes))
    model, size = load_model(asked, lambda *_: None)
    fit = model_fit(asked, has_kernels=True)
    assert (fit.num_tokens, fit.max_model_len) == (size.num_blocks * size.block_size, size.max_model_len)
    assert fit.kv_bytes == size.num_bytes
    assert fit.weights_bytes == pytest.approx(model.weights_bytes, rel=0.01)
    assert fit.kv_bytes_per_token * fit.num_tokens == size.num_bytes


def test_parameters_are_counted_in_the_headers(tmp_path: Path):
    model = make_checkpoint(tmp_path, "qwen3", shard_size="50KB")
    assert model_fit(spec(tmp_path), has_kernels=False).num_parameters == model.num_parameters()


def test_the_kernels_take_weights_as_they_lie_in_the_file(tmp_path: Path):
    wide_checkpoints.make_quantised_checkpoint(tmp_path, {"": "Q4_K"})
    fit = model_fit(spec(tmp_path), has_kernels=True)
    assert fit.computed_by == KERNELS
    assert fit.weights_bytes < fit.num_parameters
    assert fit.needs_laying_out
    (tmp_path / f"laid-out-1-8-{files_digest([tmp_path / 'weights.gguf'])}.bin").touch()
    assert not model_fit(spec(tmp_path), has_kernels=True).needs_laying_out
    in_torch = model_fit(spec(tmp_path), has_kernels=False)
    assert (in_torch.computed_by, in_torch.weights_bytes) == ("torch in float32", 4 * fit.num_parameters)
    assert in_torch.num_parameters == fit.num_parameters


def test_ranks_share_weights_and_keys(tiny):
    alone, half = (
        model_fit(spec(tiny, dtype="float32", num_gpu_blocks_override=8, parallel=parallel), has_kernels=False)
        for parallel in (ParallelSpec(), ParallelSpec(2, 1))
    )
    assert half.weights_bytes == -(-alone.weights_bytes // 2)
    assert (half.kv_bytes, half.num_tokens) == (alone.kv_bytes // 2, alone.num_tokens)


def test_without_memory_there_are_no_tokens(tiny, monkeypatch):
    monkeypatch.setattr(fitting, "available_memory", lambda: 1000)
    fit = model_fit(spec(tiny), has_kernels=False)
    assert (fit.free_bytes, fit.kv_bytes, fit.num_tokens, fit.max_model_len) == (1000, 0, 0, 0)


def test_what_could_not_be_loaded_is_refused_as_loading_would(tiny, tmp_path: Path):
    with pytest.raises(CheckpointError, match="--max-model-len 100000 is above the model's own limit"):
        model_fit(spec(tiny, max_model_len=100_000), has_kernels=False)
    if not torch.cuda.is_available():
        with pytest.raises(StartError, match="torch sees no CUDA device"):
            model_fit(spec(tiny, device="cuda"), has_kernels=False)
    (tmp_path / "config.json").write_text('{"architectures": ["FooForCausalLM"], "model_type": "foo"}')
    with pytest.raises(UnknownVariantError):
        model_fit(spec(tmp_path), has_kernels=False)
