"""Models with an 8-bit KV cache: near what they compute without, and refused where it cannot be had."""

from __future__ import annotations

import pytest
import torch

from app.settings import default_cache_directory
from gpu.load_model import load_model
from gpu.torch_runner import TorchRunner
from protocol.errors import StartError
from protocol.ids import EngineIndex, Epoch, Slot
from protocol.spec import EngineSpec
from protocol.step import Row
from tests.helpers import wide_checkpoints
from tests.helpers.runner_conformance import check_runner
from tests.helpers.stand_in_device import device_facts, device_model
from tests.helpers.tiny_checkpoints import make_checkpoint

TOLERANCE = {"fp8": 0.15, "fp8_e5m2": 0.3}
"""Of the hidden states' norm, after three layers that read 3 and 2 bits of mantissa: half again what is measured here,
where random weights amplify a difference."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("mistral")
    make_checkpoint(directory, "mistral_sliding")
    return directory


def spec(checkpoint, **changes: object) -> EngineSpec:
    sizes = {"block_size": 16, "num_gpu_blocks_override": 8, "device": "cpu", "threads": 1} | changes
    return EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), **sizes)


@pytest.mark.parametrize("name", TOLERANCE)
def test_the_cache_s_rounding_is_all_that_differs(checkpoint, name):
    rows = [Row(Slot(0), 0, [3, 4, 5, 6, 7, 8, 9], [1], False)], [Row(Slot(0), 7, [10], [1], True)]
    found = []
    with torch.inference_mode():
        for kept_in in ("auto", name):
            model, size = load_model(spec(checkpoint, dtype="float32", kv_cache_dtype=kept_in), lambda _: None)
            model.compute(rows[0])
            found.append((model.compute(rows[1]).hidden.clone(), size.num_bytes))
    (exact, all_bytes), (near, few_bytes) = found
    assert few_bytes * 4 == all_bytes
    difference = ((near - exact).norm() / exact.norm()).item()
    assert 0 < difference < TOLERANCE[name]


def test_the_cpu_kernels_refuse_it_by_name(tmp_path):
    wide_checkpoints.make_checkpoint(tmp_path, "llama", torch.bfloat16)
    with pytest.raises(StartError, match=r"--kv-cache-dtype fp8 is not for the CPU kernels.*--dtype float32"):
        load_model(spec(tmp_path, kv_cache_dtype="fp8", cache_directory=str(default_cache_directory())), lambda _: None)


def test_paged_attention_is_refused_and_gathered_attention_conforms(checkpoint, caplog):
    caplog.set_level("INFO", logger="trillm.load")
    facts = device_facts(device_model(checkpoint, kv_cache_dtype="fp8"))
    check_runner(lambda: TorchRunner(device_model(checkpoint, kv_cache_dtype="fp8"), facts))
    assert "attention is not varlen, paged: it does not read a cache of fp8" in caplog.text
    assert "attention: varlen, gathered; graphs" in caplog.text
