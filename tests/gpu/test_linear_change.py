"""8-bit weights, rows of fixed number, and who is refused them."""

from __future__ import annotations

import msgspec
import pytest
import torch

from gpu.config import ModelConfig
from gpu.layers.fixed_rows import ROWS, FixedRowsLinear
from gpu.layers.fp8 import Fp8Linear, to_fp8
from gpu.layers.linear import PlainLinear
from gpu.linear_change import LinearChange, check_quantization, linear_change
from gpu.load_model import load_model
from gpu.models.decoder import Decoder
from gpu.weights import WeightLoader, open_weights
from protocol.errors import StartError
from tests.helpers.stand_in_device import CPU, device_spec
from tests.helpers.tiny_checkpoints import make_checkpoint


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_fp8_is_near_the_exact_product():
    weight, bias, x = random(96, 64) * 0.1, random(96, seed=1), random(40, 64, seed=2)
    expected = x.double() @ weight.double().T + bias
    found = Fp8Linear(weight.bfloat16(), bias.bfloat16())(x.bfloat16())
    assert found.dtype == torch.bfloat16
    difference = (found.double() - expected).norm() / expected.norm()
    assert difference < 0.05


def test_every_row_has_its_own_scale_and_zeros_stay_zeros():
    rows = torch.tensor([[1e-4, -2e-4], [1e4, 3e4], [0.0, 0.0]])
    rounded, scales = to_fp8(rows)
    torch.testing.assert_close(rounded.float() * scales, rows, rtol=0.07, atol=0.0)


def test_a_row_with_nan_breaks_no_other():
    x = random(3, 64).bfloat16()
    x[1, 5] = torch.nan
    found = Fp8Linear(random(32, 64).bfloat16(), None)(x)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()


@pytest.mark.parametrize("rows", [1, 5, ROWS, ROWS + 1, 3 * ROWS])
def test_fixed_rows_give_the_same_product_in_one_shape(rows):
    shapes = []
    inner = PlainLinear(random(24, 16), random(24, seed=1))

    def noting(x: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(x.shape))
        return inner(x)

    x = random(rows, 16, seed=2)
    torch.testing.assert_close(FixedRowsLinear(noting)(x), inner(x))
    assert set(shapes) == {(ROWS, 16)}


def test_a_row_has_the_same_bits_in_any_company():
    linear = FixedRowsLinear(PlainLinear(random(320, 192), None))
    x = random(300, 192, seed=3)
    whole = linear(x)
    for first, rows in [(0, 1), (150, 1), (3, 2), (1, 5), (7, 33), (64, 200)]:
        assert torch.equal(linear(x[first : first + rows]), whole[first : first + rows])


@pytest.mark.parametrize("kind", ["llama", "qwen2_moe"])
def test_all_linears_of_a_model_are_changed_and_it_computes_nearly_the_same(tmp_path, kind):
    make_checkpoint(tmp_path, kind)
    config = ModelConfig.read(tmp_path)

    def load(change: LinearChange | None) -> Decoder:
        return Decoder.load(config, WeightLoader(open_weights(tmp_path), torch.bfloat16, CPU, lambda _: None), change)

    change = LinearChange(fp8=True, fixed_rows=True)
    layer = load(change).layers[0]
    mlps = [layer.mlp] if kind == "llama" else [*layer.mlp.experts, layer.mlp.shared.mlp]
    linears = [layer.attention.qkv, layer.attention.output, *(part for mlp in mlps for part in (mlp.gate_up, mlp.down))]
    assert all(isinstance(one, FixedRowsLinear) for one in linears)
    aligned = linears[:4] if kind == "llama" else linears[:2]  # those experts are 40 wide
    assert all(isinstance(one.linear, Fp8Linear) for one in aligned)
    assert change.saved_bytes > 0
    x = random(4, config.hidden_size).bfloat16()
    expected = load(None).layers[0].attention.qkv(x)
    assert (layer.attention.qkv(x) - expected).norm() / expected.norm() < 0.1


def test_what_a_device_does_not_do_is_refused_by_name(tmp_path):
    spec = device_spec(tmp_path)
    assert linear_change(spec, torch.float32, CPU) is None
    with pytest.raises(StartError, match="'int3' is not known; the only one is 'fp8'"):
        check_quantization("int3", torch.bfloat16, CPU)
    with pytest.raises(StartError, match="'fp8' is for GPUs, and the device is 'cpu'"):
        linear_change(msgspec.structs.replace(spec, quantization="fp8"), torch.bfloat16, CPU)
    with pytest.raises(StartError, match="--batch-invariant on a CPU"):
        linear_change(msgspec.structs.replace(spec, batch_invariant=True), torch.float32, CPU)


@pytest.mark.parametrize(("changes", "words"), [({"quantization": "fp8"}, "'fp8'"), ({"batch_invariant": True}, "CPU")])
def test_a_model_is_refused_before_its_weights_are_read(tmp_path, changes, words):
    make_checkpoint(tmp_path)
    spec = device_spec(tmp_path, device="cpu", dtype="float32", **changes)
    with pytest.raises(StartError, match=words):
        load_model(spec, lambda progress: pytest.fail("weights were read"))
