"""Linears: the right values, and rows that do not depend on each other."""

from __future__ import annotations

import pytest
import torch

from gpu.layers.linear import PackedLinear, PlainLinear, make_linear
from gpu.layers.packed_weight import pack

SHAPES = [(960, 576), (576, 1536), (320, 48), (17, 33)]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [True, False])
def test_packed_and_plain_agree_with_float64(shape, biased):
    weight, bias = random(*shape), random(shape[0], seed=1) if biased else None
    for rows in (1, 2, 7, 64):
        x = random(rows, shape[1], seed=2)
        expected = x.double() @ weight.double().T + (bias.double() if bias is not None else 0.0)
        for kind in (PackedLinear, PlainLinear):
            with torch.inference_mode():
                found = kind(pack(weight) if kind is PackedLinear else weight, bias)(x)
            torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_packed_rows_result_depends_on_no_other_row_to_the_last_bit(shape):
    with torch.inference_mode():
        linear = PackedLinear(pack(random(*shape)), None)
        x = random(200, shape[1], seed=3)
        whole = linear(x)
        for first, rows in [(0, 1), (150, 1), (3, 2), (9, 3), (0, 4), (1, 5), (2, 15), (5, 16), (7, 33), (64, 128)]:
            assert torch.equal(linear(x[first : first + rows]), whole[first : first + rows]), (first, rows)


def test_float32_on_a_cpu_is_packed_and_half_precision_is_not():
    assert isinstance(make_linear(random(4, 4)), PackedLinear)
    assert isinstance(make_linear(random(4, 4).bfloat16()), PlainLinear)
