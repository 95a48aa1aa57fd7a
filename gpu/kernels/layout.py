"""Weight matrices as the kernels read them: rows interleaved, one vector's worth beside each other (src/matrix.h).

From the bytes of GGUF's block formats (and plain numbers) to those of the laid-out ones. 4-bit weights keep their size;
the K-quants' scales are multiplied out, and whatever has not 4 bits takes a byte per weight. Used by laid_out.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs
import numpy as np

BLOCK = 32
"""Columns that share a scale."""


class Format(enum.IntEnum):
    """Laid-out formats; the numbers are those of src/matrix.h."""

    NIBBLES = 0
    NIBBLES_FLOAT = 1
    BYTES = 2
    BYTES_MINIMUM = 3
    BYTES_HALVES = 4
    FLOAT16 = 5
    BFLOAT16 = 6
    FLOAT32 = 7

    @property
    def is_quantised(self) -> bool:
        """Whether it meets quantised activations."""
        return self < Format.FLOAT16


_ROW_BYTES = {
    Format.NIBBLES: 20,
    Format.NIBBLES_FLOAT: 24,
    Format.BYTES: 34,
    Format.BYTES_MINIMUM: 40,
    Format.BYTES_HALVES: 40,
    Format.FLOAT16: 2 * BLOCK,
    Format.BFLOAT16: 2 * BLOCK,
    Format.FLOAT32: 4 * BLOCK,
}
"""Of BLOCK columns of one row, with its scales."""


def laid_out_bytes(form: Format, rows: int, columns: int, lanes: int) -> int:
    """Of a whole matrix, rows filled up to a multiple of `lanes`."""
    return -(-rows // lanes) * lanes * columns * _ROW_BYTES[form] // BLOCK


@attrs.frozen(eq=False)
class Blocks:
    """A quantised matrix, unpacked as far as interleaving needs it."""

    scales: list[np.ndarray]
    """[rows, blocks] each: the scale or scales of a block, then its minimum if the format has one."""
    weights: np.ndarray
    """[rows, blocks, 16 or 32] bytes: pairs of nibbles (weights 0-15 low, 16-31 high), or int8."""


def lay_out(kind: str, raw: np.ndarray, lanes: int) -> np.ndarray:
    """The laid-out bytes of a matrix of GGUF type `kind`, a key of FORMATS, with `raw` [rows, bytes per row] uint8.

    Rows are filled up with zeros to a multiple of `lanes`.
    """
    missing = -len(raw) % lanes
    if missing:
        raw = np.concatenate([raw, np.zeros((missing, raw.shape[1]), dtype=np.uint8)])
    if kind in PLAIN_DTYPES:
        numbers = raw.view(PLAIN_DTYPES[kind])
        return (
            np.ascontiguousarray(numbers.reshape(-1, lanes, numbers.shape[1]).transpose(0, 2, 1))
            .reshape(-1)
            .view(np.uint8)
        )
    block_bytes, unpack = QUANTISED[kind]
    return _interleaved(unpack(raw.reshape(len(raw), -1, block_bytes)), lanes)


def _interleaved(blocks: Blocks, lanes: int) -> np.ndarray:
    """[rows / lanes][blocks] of: each kind of scale as [lanes], then weights as [parts][lanes][4 bytes]."""
    rows, count, _ = blocks.weights.shape
    weights = np.ascontiguousarray(blocks.weights).view(np.uint32).reshape(rows // lanes, lanes, count, -1)
    pieces = [
        np.ascontiguousarray(scale.reshape(rows // lanes, lanes, count).transpose(0, 2, 1)).view(np.uint8)
        for scale in blocks.scales
    ]
    parts = np.ascontiguousarray(weights.transpose(0, 2, 3, 1)).view(np.uint8)
    pieces.append(parts.reshape(rows // lanes, count, -1))
    return np.concatenate(pieces, axis=2).reshape(-1)


def _halves(blocks: np.ndarray, first: int, count: int = 1) -> np.ndarray:
    """The float16 at byte `first` of each block: [rows, blocks]."""
    return np.ascontiguousarray(blocks[..., first : first + 2 * count]).view(np.float16)[..., 0]


def _q4_0(blocks: np.ndarray) -> Blocks:
    scale = _halves(blocks, 0)
    return Blocks([scale, scale * np.float16(-8)], blocks[..., 2:])


def _q4_1(blocks: np.ndarray) -> Blocks:
    return Blocks([_halves(blocks, 0), _halves(blocks, 2)], blocks[..., 4:])


def _q8_0(blocks: np.ndarray) -> Blocks:
    return Blocks([_halves(blocks, 0)], blocks[..., 2:])


def _q5_0(blocks: np.ndarray) -> Blocks:
    return Blocks([_halves(blocks, 0)], (_five_bits(blocks, 2).view(np.int8) - np.int8(16)).view(np.uint8))


def _q5_1(blocks: np.ndarray) -> Blocks:
    scale, minimum = (_halves(blocks, at).astype(np.float32) for at in (0, 2))
    return Blocks([scale, minimum], _five_bits(blocks, 4))


def _five_bits(blocks: np.ndarray, first: int) -> np.ndarray:
    """From byte `first`: 32 highest bits, then nibbles. [rows, blocks, 32] of 0 to 31."""
    high = np.unpackbits(blocks[..., first : first + 4], axis=2, bitorder="little")
    packed = blocks[..., first + 4 :]
    return np.concatenate([packed & 15, packed >> 4], axis=2) | high << 4


def _iq4_nl(blocks: np.ndarray) -> Blocks:
    packed = blocks[..., 2:]
    weights = IQ4_VALUES[np.concatenate([packed & 15, packed >> 4], axis=2)]
    return Blocks([_halves(blocks, 0)], weights.view(np.uint8))


def _q3_k(blocks: np.ndarray) -> Blocks:
    shape = blocks.shape[:2]
    packed = blocks[..., 32:96].reshape(*shape, 2, 1, 32)
    low = (packed >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]) & 3  # [.., half, block of 32, 32]
    high = (blocks[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None]) & 1  # bit i: the i-th block of 32
    weights = (low.reshape(*shape, 8, 32) | high << 2).view(np.int8) - np.int8(4)
    scales = blocks[..., 96:108]
    low_scales = np.concatenate([scales[..., :8] & 15, scales[..., :8] >> 4], axis=2)
    high_scales = np.concatenate([(scales[..., 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=2)
    factors = (low_scales | high_scales << 4).view(np.int8) - np.int8(32)
    multiplied = (_halves(blocks, 108).astype(np.float32)[..., None] * factors).reshape(len(blocks), -1, 2)
    halves = [multiplied[..., 0], multiplied[..., 1]]
    return Blocks(halves, weights.reshape(len(blocks), -1, 32).view(np.uint8))


def _q4_k(blocks: np.ndarray) -> Blocks:
    scales, minimums = _k_scales(blocks)
    packed = blocks[..., 16:144].reshape(*blocks.shape[:2], 4, 32)
    values = np.stack([packed & 15, packed >> 4], axis=3).reshape(len(blocks), -1, 32)
    return Blocks([scales, minimums], values[..., :16] | values[..., 16:] << 4)


def _q5_k(blocks: np.ndarray) -> Blocks:
    scales, minimums = _k_scales(blocks)
    fifth = blocks[..., 16:48]  # bit i of byte j: the highest bit of weight j of the i-th block of 32
    packed = blocks[..., 48:176].reshape(*blocks.shape[:2], 4, 32)
    low = np.stack([packed & 15, packed >> 4], axis=3).reshape(*blocks.shape[:2], 8, 32)
    high = np.stack([(fifth >> bit) & 1 for bit in range(8)], axis=2)
    return Blocks([scales, minimums], (low | high << 4).reshape(len(blocks), -1, 32))


def _q6_k(blocks: np.ndarray) -> Blocks:
    shape = blocks.shape[:2]
    low = blocks[..., :128].reshape(*shape, 2, 64)
    high = blocks[..., 128:192].reshape(*shape, 2, 32)
    # Each half of 128 weights: four blocks of 32, whose low bits are nibbles and whose high ones pairs of bits.
    parts = [low[..., :32] & 15, low[..., 32:] & 15, low[..., :32] >> 4, low[..., 32:] >> 4]
    values = np.stack([part | ((high >> 2 * i) & 3) << 4 for i, part in enumerate(parts)], axis=3)
    weights = (values.astype(np.int8) - np.int8(32)).reshape(len(blocks), -1, 32)
    scales = _halves(blocks, 208).astype(np.float32)[..., None] * blocks[..., 192:208].view(np.int8)
    scales = scales.reshape(len(blocks), -1, 2)
    return Blocks([scales[..., 0], scales[..., 1]], weights.view(np.uint8))


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q4_K's and Q5_K's scales and minimums of 32 weights, multiplied out: [rows, blocks of 32] float32 each."""
    packed = blocks[..., 4:16]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=2)
    minimums = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=2)
    factor, minimum_factor = (_halves(blocks, at).astype(np.float32)[..., None] for at in (0, 2))
    return (factor * scales).reshape(len(blocks), -1), (-minimum_factor * minimums).reshape(len(blocks), -1)


IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.int8)
"""What IQ4_NL's nibbles stand for."""
PLAIN_DTYPES: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.uint16, "BF16": np.uint16}
QUANTISED: dict[str, tuple[int, Callable[[np.ndarray], Blocks]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "IQ4_NL": (18, _iq4_nl),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
"""Bytes of one of GGUF's blocks, and what unpacks [rows, blocks, bytes]."""
FORMATS = {
    "Q4_0": Format.NIBBLES,
    "Q4_1": Format.NIBBLES,
    "Q5_0": Format.BYTES,
    "Q5_1": Format.BYTES_MINIMUM,
    "Q8_0": Format.BYTES,
    "IQ4_NL": Format.BYTES,
    "Q3_K": Format.BYTES_HALVES,
    "Q4_K": Format.NIBBLES_FLOAT,
    "Q5_K": Format.BYTES_MINIMUM,
    "Q6_K": Format.BYTES_HALVES,
    "F16": Format.FLOAT16,
    "BF16": Format.BFLOAT16,
    "F32": Format.FLOAT32,
}
