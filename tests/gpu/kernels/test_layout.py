"""Laid-out weights are the same numbers as in the file."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.kernels import KINDS, OpenPool, RandomMatrix, dequantised, native_library, plain_library


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [3, 16, 37])
def test_a_row_reads_as_the_gguf_package_reads_it(kind, rows):
    matrix = RandomMatrix(kind, rows, 512)
    with OpenPool() as pool:
        found = pool.read_rows(matrix, list(range(rows)))
    np.testing.assert_allclose(found, dequantised(kind, matrix.raw, 512), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_plain_numbers_may_have_any_number_of_columns(kind):
    matrix = RandomMatrix(kind, 5, 7)
    with OpenPool() as pool:
        np.testing.assert_array_equal(pool.read_rows(matrix, [4, 0]), dequantised(kind, matrix.raw, 7)[[4, 0]])


def test_every_float16_number_reads_alike_with_and_without_instructions():
    bits = np.arange(65536, dtype=np.uint16)
    finite = bits[np.isfinite(bits.view(np.float16))].reshape(-1, 64)
    for library in (native_library(), plain_library()):
        matrix = RandomMatrix("F16", len(finite), 64)
        lanes = library.lanes
        padded = np.zeros((-(-len(finite) // lanes) * lanes, 64), dtype=np.uint16)
        padded[: len(finite)] = finite
        matrix.data = np.ascontiguousarray(padded.reshape(-1, lanes, 64).transpose(0, 2, 1)).reshape(-1).view(np.uint8)
        matrix.struct.data = matrix.data.ctypes.data
        with OpenPool(library=library) as pool:
            found = pool.read_rows(matrix, list(range(len(finite))))
            products = pool.multiply(matrix, np.eye(1, 64, 5, dtype=np.float32))
        np.testing.assert_array_equal(found, finite.view(np.float16).astype(np.float32))
        np.testing.assert_array_equal(products[0], finite.view(np.float16).astype(np.float32)[:, 5])
