"""Noise is a function of seed, position and vocabulary index alone, and distributed as Gumbel-max needs it."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gpu.noise import MAX_BYTES, gumbel_noise, noise_key

SEEDS = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=50)
@given(st.lists(st.tuples(SEEDS, st.integers(0, 10**6)), min_size=1, max_size=5), st.integers(1, 200))
def test_a_row_of_noise_depends_on_nothing_beside_it(draws, vocab_size):
    keys = [noise_key(seed, position) for seed, position in draws]
    together = gumbel_noise(torch.tensor(keys), vocab_size)
    for row, key in zip(together, keys, strict=True):
        assert torch.equal(row, gumbel_noise(torch.tensor([key]), vocab_size + 7)[0, :vocab_size])
    assert together.isfinite().all()


def test_noise_equals_splitmix64_computed_with_python_integers():
    mask = 2**64 - 1
    for seed, position in [(0, 0), (-1, 5), (2**63 - 1, 8191), (-(2**63), 1)]:
        key = noise_key(seed, position)
        row = gumbel_noise(torch.tensor([key]), 50)[0].double()
        for index in range(50):
            state = (key + (index + 1) * 0x9E3779B97F4A7C15) & mask
            state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
            state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
            state ^= state >> 31
            uniform = torch.tensor(((state >> 12) + 0.5) / 2**52, dtype=torch.float64)
            torch.testing.assert_close(row[index], -(-uniform.log()).log(), atol=1e-5, rtol=1e-5)


@given(st.integers(1, 9), st.integers(1, 10), st.integers(1, 40))
def test_how_many_rows_are_computed_at_once_changes_no_bit(rows, at_once, vocab_size):
    keys = torch.tensor([noise_key(5, position) for position in range(rows)])
    assert torch.equal(gumbel_noise(keys, vocab_size, at_once), gumbel_noise(keys, vocab_size))


class LargestWide(TorchDispatchMode):
    """The bytes of the largest tensor of 8-byte numbers that an operator made."""

    num_bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.itemsize == 8:
            self.num_bytes = max(self.num_bytes, made.nbytes)
        return made


def test_on_a_device_the_wide_numbers_of_many_rows_need_a_bounded_memory():
    keys = torch.empty(256, dtype=torch.int64, device="meta")
    with LargestWide() as largest:
        assert gumbel_noise(keys, 150_000).shape == (256, 150_000)
    assert MAX_BYTES / 8 < 3 * largest.num_bytes <= MAX_BYTES


def test_keys_differ_for_neighbouring_seeds_and_positions():
    keys = {noise_key(seed, position) for seed in range(-50, 50) for position in range(100)}
    assert len(keys) == 10_000


def test_noise_has_the_mean_and_spread_of_a_gumbel_variable():
    noise = gumbel_noise(torch.tensor([noise_key(7, position) for position in range(40)]), 5000).double()
    assert abs(noise.mean().item() - 0.57722) < 0.01
    assert abs(noise.var().item() - 1.64493) < 0.03
    # Neither neighbours in the vocabulary nor neighbouring positions go together.
    centred = noise - noise.mean()
    assert abs((centred[:, 1:] * centred[:, :-1]).mean().item()) < 0.02
    assert abs((centred[1:] * centred[:-1]).mean().item()) < 0.02


def test_argmax_with_noise_draws_tokens_as_often_as_their_probability():
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    noise = gumbel_noise(torch.tensor([noise_key(3, position) for position in range(20_000)]), 4)
    drawn = (probabilities.log() + noise).argmax(dim=1).bincount(minlength=4) / 20_000
    torch.testing.assert_close(drawn, probabilities, atol=0.015, rtol=0)
