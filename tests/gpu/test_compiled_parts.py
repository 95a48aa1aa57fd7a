"""What is compiled computes the same, and what cannot be or lies is left out with a line that says so.

With torch's backends that trace and then run the operators as they are: no compiler is needed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gpu.compiled_parts import compile_parts, use_plain_parts
from gpu.config import ModelConfig
from gpu.layers.mlp import gated
from gpu.layers.norm import RMSNorm, WideRMSNorm, rms_norm, wide_rms_norm
from gpu.layers.rope import rotate
from gpu.models.decoder import Decoder
from gpu.weights import WeightLoader, open_weights
from protocol.ids import Slot
from protocol.step import Row
from tests.helpers.stand_in_device import device_model
from tests.helpers.tiny_checkpoints import make_checkpoint

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["mistral_sliding", "gemma3"])
def loaded(request, tmp_path_factory):
    torch.set_num_threads(1)  # the tensors are tiny, and threads would wait for each other
    directory = tmp_path_factory.mktemp(request.param)
    make_checkpoint(directory, request.param)
    config = ModelConfig.read(directory)
    with torch.inference_mode():
        decoder = Decoder.load(config, WeightLoader(open_weights(directory), torch.float32, CPU, lambda _: None))
    return config, decoder


def parts_of(decoder: Decoder) -> list[tuple[Callable, Callable]]:
    """What the first layer computes with, and torch's own operators for it."""
    layer = decoder.layers[0]
    norm = layer.attention_norm
    return [
        (norm.compute, {RMSNorm: rms_norm, WideRMSNorm: wide_rms_norm}[type(norm)]),
        (layer.mlp.compute, gated),
        (layer.attention.rotate, rotate),
    ]


@torch.inference_mode()
def test_traced_parts_are_taken_and_can_be_put_back(loaded):
    config, decoder = loaded
    assert compile_parts(decoder, config, 4, "eager") is None
    assert all(compiled is not plain for compiled, plain in parts_of(decoder))
    use_plain_parts(decoder)
    assert all(put_back is plain for put_back, plain in parts_of(decoder))


@torch.inference_mode()
def test_a_compiler_that_fails_or_lies_is_left_out(loaded):
    config, decoder = loaded

    def failing(graph, inputs):
        raise OSError("no compiler is installed")

    def lying(graph, inputs):
        return lambda *values: tuple(one * 1.1 for one in graph(*values))

    assert "no compiler is installed" in compile_parts(decoder, config, 4, failing)
    assert "differs from itself by" in compile_parts(decoder, config, 4, lying)
    assert all(put_back is plain for put_back, plain in parts_of(decoder))


@torch.inference_mode()
def test_a_model_on_a_device_has_them_unless_it_is_told_to_be_eager(tmp_path, caplog):
    make_checkpoint(tmp_path, "mistral_sliding")
    caplog.set_level("INFO", logger="trillm.load")
    rows = [Row(Slot(0), 0, [1, 2, 3], [0], False)]
    compiled = device_model(tmp_path, compiler="eager")
    assert "norms, gates and rotations compiled in" in caplog.text
    caplog.clear()
    plain = device_model(tmp_path, compiler="eager", enforce_eager=True)
    assert "compiled" not in caplog.text
    torch.testing.assert_close(compiled.compute(rows).hidden, plain.compute(rows).hidden)
