"""The linear of every format: right, and each row alone to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.models.native_decoder import Precision
from tests.helpers.kernels import KINDS, OpenPool, RandomMatrix, dequantised, plain_library

COLUMNS = 512
QUANTISED_KINDS = [kind for kind in KINDS if kind not in ("F32", "F16", "BF16")]


def activations(tokens: int, seed: int = 1, columns: int = COLUMNS) -> np.ndarray:
    random = np.random.default_rng(seed)
    spread = np.exp(random.standard_normal((tokens, columns // 32, 1)) * 2)  # blocks of very different size
    return (random.standard_normal((tokens, columns // 32, 32)) * spread).reshape(tokens, columns).astype(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    """Activations as the quantised formats see them, in float64."""
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    inverse = np.float32(127.0) / np.maximum(largest, np.float32(1e-30))
    whole = np.rint(blocks * inverse)
    return (whole.astype(np.float64) * (largest.astype(np.float64) / 127.0)).reshape(x.shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", [Precision.COARSE, Precision.FINE])
def test_it_multiplies(kind, precision):
    matrix, x = RandomMatrix(kind, 40, COLUMNS), activations(11)
    with OpenPool() as pool:
        found = pool.multiply(matrix, x, precision)
    is_rounded = kind in QUANTISED_KINDS and precision is Precision.COARSE
    seen = rounded(x) if is_rounded else x.astype(np.float64)
    weights = dequantised(kind, matrix.raw, COLUMNS).astype(np.float64)
    tolerance = 1e-5 * (np.abs(seen) @ np.abs(weights).T).max()
    np.testing.assert_allclose(found, seen @ weights.T, rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", [Precision.COARSE, Precision.FINE])
def test_instructions_compute_what_plain_code_computes_to_the_last_bit(kind, precision):
    matrix, x = RandomMatrix(kind, 40, COLUMNS), activations(11)
    with OpenPool() as pool, OpenPool(library=plain_library()) as plain:
        np.testing.assert_array_equal(pool.multiply(matrix, x, precision), plain.multiply(matrix, x, precision))


@pytest.mark.parametrize("kind", QUANTISED_KINDS)
@pytest.mark.parametrize("fill", [0x00, 0x7F, 0x80, 0xFF])
def test_the_largest_weights_and_activations_do_not_overflow(kind, fill):
    matrix = RandomMatrix(kind, 32, 256, fill=fill)
    x = np.full((3, 256), -1.0, dtype=np.float32)
    x[1] = 1.0
    x[2, ::2] = 1.0
    with OpenPool() as pool:
        found = pool.multiply(matrix, x)
    expected = x.astype(np.float64) @ dequantised(kind, matrix.raw, 256).astype(np.float64).T
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@settings(max_examples=30)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([Precision.COARSE, Precision.FINE]),
    st.lists(st.integers(0, 63), min_size=1, max_size=40),
    st.integers(1, 3),
    st.sampled_from([16, 40, 100]),
)
def test_a_row_s_result_depends_on_no_other_row_and_on_no_thread(kind, precision, tokens, threads, rows):
    matrix, x = RandomMatrix(kind, rows, 256), activations(64, columns=256)
    with OpenPool(threads) as pool, OpenPool(1) as alone:
        together = pool.multiply(matrix, x[tokens], precision)
        for token, found in zip(tokens, together, strict=True):
            np.testing.assert_array_equal(found, alone.multiply(matrix, x[token : token + 1], precision)[0])


def test_bias_and_what_is_there_are_added():
    matrix, x = RandomMatrix("Q4_1", 21, 64), activations(3, columns=64)
    random = np.random.default_rng(5)
    bias = random.standard_normal(32).astype(np.float32)[:21].copy()
    before = random.standard_normal((3, 21)).astype(np.float32)
    with OpenPool() as pool:
        plain = pool.multiply(matrix, x)
        np.testing.assert_array_equal(pool.multiply(matrix, x, bias=bias), plain + bias)
        np.testing.assert_array_equal(pool.multiply(matrix, x, bias=bias, y=before), before + (plain + bias))


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", [Precision.COARSE, Precision.FINE])
def test_what_is_not_finite_stays_so_in_its_row_alone(kind, precision, broken):
    matrix, x = RandomMatrix(kind, 16, 256), activations(6, columns=256)
    with OpenPool() as pool:
        whole = pool.multiply(matrix, x, precision)
        x[2, 77] = broken
        found = pool.multiply(matrix, x, precision)
    assert not np.isfinite(found[2]).any()
    np.testing.assert_array_equal(np.delete(found, 2, axis=0), np.delete(whole, 2, axis=0))


@pytest.mark.parametrize("tokens", [1, 5, 16, 37])
@pytest.mark.parametrize(("precision", "steps"), [(Precision.COARSE, 1), (Precision.FINE, 256)])
def test_activations_are_rounded_to_the_nearest_127th_of_their_block_or_a_256th_of_that(tokens, precision, steps):
    x = activations(tokens)
    if tokens > 4:
        x[3] = 0.0
        x[4] *= 1e-38
    with OpenPool() as pool, OpenPool(library=plain_library()) as plain:
        found = pool.quantise(x, precision)
        np.testing.assert_array_equal(found, plain.quantise(x, precision))
    whole = found["values"].astype(np.int32)
    if precision is Precision.FINE:
        whole = whole * 256 + found["fine"]
    scale = found["scale"][..., None]
    # A remainder of half a step is kept as 127 of 256ths, since 128 is no int8.
    far = np.abs(whole * scale - x.reshape(tokens, -1, 32)) > scale * (0.501 if steps == 1 else 1.001)
    assert not far[: 4 if tokens > 4 else None].any()
    np.testing.assert_allclose(
        scale[..., 0] * steps, np.abs(x.reshape(tokens, -1, 32)).max(axis=2) / 127, rtol=1e-6, atol=1e-38
    )
    np.testing.assert_array_equal(found["half_sums"], whole.reshape(tokens, -1, 2, 16).sum(axis=3))
    np.testing.assert_allclose(found["scaled_sum"], scale[..., 0] * whole.sum(axis=2), rtol=1e-5, atol=1e-38)
