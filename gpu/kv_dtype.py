"""What keys and values are kept in: as they are computed, or rounded to 8 bits, so that twice as many find room.

Rounded with a scale of 1, as vLLM does where a checkpoint brings no scales: keys and values of ordinary models lie well
within ±448. Used by gpu/load_model, gpu/cuda_model and gpu/kv_pool.
"""

from __future__ import annotations

import torch

from protocol.errors import StartError

FP8_DTYPES = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""By vLLM's names; e5m2 has a bit less precision and far more range."""


def kv_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """What --kv-cache-dtype comes down to for a model that computes in `dtype`. Raises StartError."""
    if name == "auto":
        return dtype
    if name not in FP8_DTYPES:
        raise StartError(f"--kv-cache-dtype {name!r} is none of auto, {', '.join(FP8_DTYPES)}")
    return FP8_DTYPES[name]


def is_fp8(dtype: torch.dtype) -> bool:
    return dtype in FP8_DTYPES.values()


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As `dtype`. What is beyond its range becomes its largest, where torch would make NaN or infinity of it."""
    if x.dtype == dtype:
        return x
    if is_fp8(dtype):
        largest = torch.finfo(dtype).max
        x = x.clamp(-largest, largest)
    return x.to(dtype)
