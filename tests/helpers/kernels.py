"""The built kernels, random weights of every format, and single operations over numpy arrays."""

from __future__ import annotations

import functools

import numpy as np

from app.settings import default_cache_directory
from gpu.kernels.build import built_library
from gpu.kernels.layout import FORMATS, PLAIN_DTYPES, QUANTISED, lay_out
from gpu.kernels.library import KernelLibrary, Pool, Program
from gpu.kernels.structs import (
    PANEL_TOKENS,
    Embed,
    Kind,
    Linear,
    LinearInput,
    LinearOutput,
    Matrix,
    Operation,
    Quantise,
    Step,
)
from gpu.models.native_decoder import Precision, Rows

KINDS = sorted(FORMATS)
_SUMS = [("scale", np.float32), ("scaled_sum", np.float32), ("half_sums", np.int32, 2)]
BLOCKS = {
    Precision.COARSE: np.dtype([("values", np.int8, 32), *_SUMS]),
    Precision.FINE: np.dtype([("values", np.int8, 32), ("fine", np.int8, 32), *_SUMS]),
}
"""Quantised activations as src/activations.h has them."""
BLOCK = {"Q3_K": 256, "Q4_K": 256, "Q5_K": 256, "Q6_K": 256, "F32": 1, "F16": 1, "BF16": 1}
"""Weights of one of GGUF's blocks where it is not 32."""
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where a block's float16 numbers lie."""


@functools.cache
def native_library() -> KernelLibrary:
    """The kernels as they are served."""
    return KernelLibrary(built_library(default_cache_directory()))


@functools.cache
def plain_library() -> KernelLibrary:
    """The plain C++ of the same width; barely optimised, since that takes the compiler a third of the time."""
    lanes = native_library().lanes
    return KernelLibrary(built_library(default_cache_directory(), (f"-DTRILLM_PLAIN_LANES={lanes}", "-O1")))


def random_raw(kind: str, rows: int, columns: int, seed: int = 0, fill: int | None = None) -> np.ndarray:
    """A matrix of small numbers as GGUF stores it: [rows, bytes per row] uint8; `fill` is for each byte of the
    quantised ones but the scales."""
    random = np.random.default_rng(seed)
    if kind in PLAIN_DTYPES:
        numbers = (random.standard_normal((rows, columns)) / 8).astype(np.float32)
        if kind == "F16":
            return numbers.astype(np.float16).view(np.uint8)
        if kind == "BF16":
            return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return numbers.view(np.uint8)
    count = columns // BLOCK.get(kind, 32)
    blocks = random.integers(0, 256, (rows, count, QUANTISED[kind][0]), dtype=np.uint8)
    if fill is not None:
        blocks[:] = fill
    for place in SCALES[kind]:
        scales = (random.uniform(-1, 1, (rows, count, 1)) / 64).astype(np.float16)
        blocks[..., place : place + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


class RandomMatrix:
    """A laid-out matrix, and the memory that it lies in."""

    def __init__(self, kind: str, rows: int, columns: int, seed: int = 0, fill: int | None = None) -> None:
        self.raw = random_raw(kind, rows, columns, seed, fill)
        self.data = lay_out(kind, self.raw, native_library().lanes)
        self.struct = Matrix(self.data.ctypes.data, FORMATS[kind], rows, columns)


class OpenPool:
    """A context with a pool of so many threads."""

    def __init__(self, threads: int = 1, library: KernelLibrary | None = None) -> None:
        self._pool = Pool(library or native_library(), threads)

    def __enter__(self) -> OpenPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def run(self, step: Step, *operations: Operation) -> None:
        self._pool.run(Program(operations), step)

    def read_rows(self, matrix: RandomMatrix, rows: list[int]) -> np.ndarray:
        """Those rows as float32, by the operation that looks up embeddings."""
        ids = np.array(rows, dtype=np.int32)
        into = Rows(len(rows), matrix.struct.columns)
        step = Step(tokens=len(rows), token_ids=ids.ctypes.data)
        self.run(step, Embed(Kind.EMBED, matrix.struct, into.address))
        return into.numbers

    def multiply(
        self,
        matrix: RandomMatrix,
        x: np.ndarray,
        precision: Precision = Precision.COARSE,
        bias: np.ndarray | None = None,
        y: np.ndarray | None = None,
    ) -> np.ndarray:
        """x W^T (+ bias) (+ y) for x [tokens, columns] float32."""
        tokens, columns = x.shape
        rows = matrix.struct.rows
        source = Rows(tokens, columns, precision if columns % 32 == 0 else Precision.NUMBERS)
        source.numbers[:] = x
        into = np.full((tokens, rows), np.nan, dtype=np.float32) if y is None else y.copy()
        operations: list[Operation] = []
        if source.blocks.size:
            operations.append(Quantise(Kind.QUANTISE, columns, source.address, source.quantised))
        out = LinearOutput(into.ctypes.data, rows, y is not None, None if bias is None else bias.ctypes.data)
        operations.append(Linear(Kind.LINEAR, matrix.struct, LinearInput(source.address, source.quantised), out))
        self.run(Step(tokens=tokens), *operations)
        return into

    def quantise(self, x: np.ndarray, precision: Precision) -> np.ndarray:
        """Records of BLOCKS[precision], [tokens, columns / 32]."""
        tokens, columns = x.shape
        rows = Rows(tokens, columns, precision)
        rows.numbers[:] = x
        self.run(Step(tokens=tokens), Quantise(Kind.QUANTISE, columns, rows.address, rows.quantised))
        width = min(PANEL_TOKENS, 1 << (tokens - 1).bit_length())
        panels = rows.blocks.view(BLOCKS[precision])[: -(-tokens // width) * width * columns // 32]
        return panels.reshape(-1, columns // 32, width).swapaxes(1, 2).reshape(-1, columns // 32)[:tokens]


def dequantised(kind: str, raw: np.ndarray, columns: int) -> np.ndarray:
    """What the gguf package makes of `random_raw`: [rows, columns] float32."""
    import gguf

    if kind == "F32":
        return raw.view(np.float32)
    if kind == "F16":
        return raw.view(np.float16).astype(np.float32)
    values = gguf.quants.dequantize(raw.reshape(-1), gguf.GGMLQuantizationType[kind])
    return np.asarray(values, dtype=np.float32).reshape(len(raw), columns)
