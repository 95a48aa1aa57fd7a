"""Sampling noise that is a function of (seed, position, vocabulary index) and of nothing else.

So a sequence draws the same noise in any batch, on any device and after any restart. Counter-based: splitmix64 keyed
by seed and position, counted by the vocabulary index, in int64 arithmetic that wraps around. Used by gpu/sampler.
"""

from __future__ import annotations

import torch

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
MAX_BYTES = 128 * 2**20
"""Of what is computed on a device on the way to the noise. Nobody sets memory aside for it, and all at once it would be
a gigabyte for 256 rows of 150,000."""
BYTES_PER_NUMBER = 24
"""Three of 8 bytes are there together at most: see _gumbel."""


def gumbel_noise(keys: torch.Tensor, vocab_size: int, at_once: int | None = None) -> torch.Tensor:
    """Standard Gumbel noise, one row per key of [keys] int64: [keys, vocab_size] float32 there, always finite.

    `at_once` rows are computed together, which changes no bit of them. By default one on a CPU, where the many passes
    over a row then stay in the cache, and elsewhere as many as need no more than MAX_BYTES beside the result."""
    if at_once is None:
        at_once = 1 if keys.device.type == "cpu" else max(1, MAX_BYTES // (BYTES_PER_NUMBER * vocab_size))
    counters = torch.arange(1, vocab_size + 1, device=keys.device) * _signed(GOLDEN)
    noise = torch.empty(len(keys), vocab_size, device=keys.device)
    for some, rows in zip(keys.unsqueeze(1).split(at_once), noise.split(at_once), strict=True):
        rows.copy_(_gumbel(counters + some))
    return noise


def noise_keys(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The keys of draws, [rows] int64: `seeds` as `seed_key` makes them, `positions` of the tokens that are drawn."""
    return _mix_all(seeds + (positions + 1) * _signed(GOLDEN))


def seed_key(seed: int) -> int:
    """An int64 that stands for the seed in `noise_keys`."""
    return _signed(_mix(seed & MASK))


def noise_key(seed: int, position: int) -> int:
    """The key of one draw, an int64, without tensors; `position` is the index of the token that is drawn."""
    return _signed(_mix((_mix(seed & MASK) + (position + 1) * GOLDEN) & MASK))


def _gumbel(state: torch.Tensor) -> torch.Tensor:
    """int64 to float64 of the same shape. Overwrites it."""
    bits = _shift(_mix_all(state), 12)
    # 52 random bits and a half: strictly between 0 and 1, so that neither logarithm is infinite.
    return bits.double().add_(0.5).mul_(2.0**-52).log_().neg_().log_().neg_()


def _mix(value: int) -> int:
    """splitmix64's finaliser, in Python's integers."""
    value = ((value ^ (value >> 30)) * MIX_1) & MASK
    value = ((value ^ (value >> 27)) * MIX_2) & MASK
    return value ^ (value >> 31)


def _mix_all(state: torch.Tensor) -> torch.Tensor:
    """The same in int64 that wraps around, in place."""
    state.bitwise_xor_(_shift(state, 30)).mul_(_signed(MIX_1))
    state.bitwise_xor_(_shift(state, 27)).mul_(_signed(MIX_2))
    return state.bitwise_xor_(_shift(state, 31))


def _shift(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of int64: torch's own brings the sign in."""
    return (values >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The int64 with the same bits."""
    return value - 2**64 if value >= 2**63 else value
