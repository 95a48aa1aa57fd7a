"""How GGUF's types pack numbers. Used by gpu/gguf_weights.

The simple formats are unpacked here, four times as fast as the gguf package does, the K-quants there.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from gpu.stacked_experts import EXPONENT_BIAS, FP4

TWICE_FP4 = np.array(FP4, dtype=np.float32) * 2
"""With half the scale, so that the largest scale is a float32 too."""


@attrs.frozen
class Quantisation:
    """How a GGUF type packs its values."""

    block: int
    """Values of one block."""
    block_bytes: int
    decode: Callable[[np.ndarray], np.ndarray]
    """[blocks, block_bytes] uint8 to [blocks, block] of float32 or float16."""


def _halves(blocks: np.ndarray, first: int) -> np.ndarray:
    """The float16 at byte `first` of each block: [blocks, 1] float32."""
    return blocks[:, first : first + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """[blocks, 16] bytes to [blocks, 32] float32: all low nibbles, then all high ones."""
    values = np.empty((len(packed), 2, 16), dtype=np.float32)
    values[:, 0] = packed & 15
    values[:, 1] = packed >> 4
    return values.reshape(-1, 32)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    values = _nibbles(blocks[:, 2:])
    values -= 8.0
    values *= _halves(blocks, 0)
    return values


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    values = _nibbles(blocks[:, 4:])
    values *= _halves(blocks, 0)
    values += _halves(blocks, 2)
    return values


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= _halves(blocks, 0)
    return values


def _mxfp4(blocks: np.ndarray) -> np.ndarray:
    packed = blocks[:, 1:]
    values = TWICE_FP4[np.concatenate((packed & 15, packed >> 4), axis=1)]
    values *= np.ldexp(np.float32(0.5), blocks[:, :1].astype(np.int32) - EXPONENT_BIAS)
    return values


def _plain(dtype: type[np.floating]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda blocks: blocks.view(dtype)


def _bf16(blocks: np.ndarray) -> np.ndarray:
    """The upper half of a float32."""
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _with_gguf(kind: str) -> Callable[[np.ndarray], np.ndarray]:
    def decode(blocks: np.ndarray) -> np.ndarray:
        import gguf  # takes a moment, which only those who need it should spend

        return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])

    return decode


QUANTISATIONS = {
    "F32": Quantisation(1, 4, _plain(np.float32)),
    "F16": Quantisation(1, 2, _plain(np.float16)),
    "BF16": Quantisation(1, 2, _bf16),
    "Q4_0": Quantisation(32, 18, _q4_0),
    "Q4_1": Quantisation(32, 20, _q4_1),
    "Q5_0": Quantisation(32, 22, _with_gguf("Q5_0")),
    "Q5_1": Quantisation(32, 24, _with_gguf("Q5_1")),
    "Q8_0": Quantisation(32, 34, _q8_0),
    "MXFP4": Quantisation(32, 17, _mxfp4),
    "Q2_K": Quantisation(256, 84, _with_gguf("Q2_K")),
    "Q3_K": Quantisation(256, 110, _with_gguf("Q3_K")),
    "Q4_K": Quantisation(256, 144, _with_gguf("Q4_K")),
    "Q5_K": Quantisation(256, 176, _with_gguf("Q5_K")),
    "Q6_K": Quantisation(256, 210, _with_gguf("Q6_K")),
    "IQ4_NL": Quantisation(32, 18, _with_gguf("IQ4_NL")),
    "IQ4_XS": Quantisation(256, 136, _with_gguf("IQ4_XS")),
}
