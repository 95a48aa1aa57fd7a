"""Attention over blocks where they lie: as torch computes it, and each query alone to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.kernels.library import KernelLibrary
from gpu.kernels.structs import Angles, Attend, Cache, Heads, Kind, Rotate
from gpu.layers.rope import RopeConfig, RotaryEmbedding, rotate
from gpu.native_batch import NativeBatch
from protocol.ids import Slot
from protocol.step import Row
from tests.helpers.kernels import OpenPool, plain_library

BLOCKS = 64


class Layer:
    """Rotation, cache and attention of one layer."""

    def __init__(
        self, heads: int = 6, kv_heads: int = 2, head_dim: int = 32, block_size: int = 16, window: int = 0
    ) -> None:
        self.heads = Heads(heads, kv_heads, head_dim)
        self.width = (heads + 2 * kv_heads) * head_dim
        self.block_size, self.window = block_size, window
        self.frequencies = RopeConfig(10000.0).inverse_frequencies(head_dim).numpy()
        # Whatever an earlier owner left in a block must not matter.
        self.cache = np.full((2, BLOCKS, kv_heads * block_size * head_dim), np.nan, dtype=np.float16)

    def run(
        self, rows: list[Row], qkv: np.ndarray, threads: int = 1, library: KernelLibrary | None = None
    ) -> np.ndarray:
        """[tokens, width] to [tokens, heads * head_dim]."""
        batch = NativeBatch(rows, self.block_size, 1, BLOCKS)
        qkv = qkv.copy()
        pairs = self.heads.head_dim // 2
        cos, sin = np.empty((2, batch.tokens, pairs), dtype=np.float32)
        into = np.full((batch.tokens, self.heads.heads * self.heads.head_dim), np.nan, dtype=np.float32)
        keys, values = (half.ctypes.data for half in self.cache)
        at = (cos.ctypes.data, sin.ctypes.data)
        with OpenPool(threads, library) as pool:
            pool.run(
                batch.step,
                Angles(Kind.ANGLES, pairs, self.frequencies.ctypes.data, 1.0, *at),
                Rotate(Kind.ROTATE, self.heads, qkv.ctypes.data, *at, None, None, 0.0, Cache(keys, values)),
                Attend(Kind.ATTEND, self.heads, qkv.ctypes.data, into.ctypes.data, self.window, Cache(keys, values)),
            )
        return into


def row(start: int, tokens: int, blocks: list[int]) -> Row:
    return Row(Slot(0), start, [0] * tokens, blocks, True)


def random_qkv(tokens: int, width: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, width)).astype(np.float32)


def expected(layer: Layer, qkv: np.ndarray) -> torch.Tensor:
    heads, kv_heads, head_dim = layer.heads.heads, layer.heads.kv_heads, layer.heads.head_dim
    parts = torch.from_numpy(qkv).unflatten(1, (-1, head_dim))
    rotary = RotaryEmbedding(RopeConfig(10000.0), head_dim, torch.float32, torch.device("cpu"))
    rotation = rotary.at(torch.arange(len(qkv)))
    queries = rotate(parts[:, :heads], *rotation)
    keys = rotate(parts[:, heads : heads + kv_heads], *rotation).half().float()
    values = parts[:, heads + kv_heads :].half().float()
    position = torch.arange(len(qkv))
    mask = position <= position[:, None]
    if layer.window:
        mask &= position > position[:, None] - layer.window
    out = F.scaled_dot_product_attention(
        queries.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1), attn_mask=mask, enable_gqa=True
    )
    return out.transpose(0, 1).flatten(1)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(6, 2, 32), (4, 4, 16), (9, 1, 64), (7, 1, 80), (2, 2, 256)]
)
@pytest.mark.parametrize("window", [0, 1, 10, 50, 200])
@pytest.mark.parametrize("block_size", [16, 32])
def test_it_is_what_torch_computes(heads, kv_heads, head_dim, window, block_size):
    layer = Layer(heads, kv_heads, head_dim, block_size, window)
    qkv = random_qkv(300, layer.width)
    blocks = [(7 * i + 3) % BLOCKS for i in range(-(-300 // block_size))]
    found = layer.run([row(0, 300, blocks)], qkv)
    # A key that torch rounds the other way to float16 makes this much.
    torch.testing.assert_close(torch.from_numpy(found), expected(layer, qkv), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("window", [0, 2, 10, 37])
def test_instructions_compute_what_plain_code_computes_to_the_last_bit(window):
    results = []
    for library in (None, plain_library()):
        layer = Layer(window=window)
        results.append(layer.run([row(0, 300, list(range(20)))], random_qkv(300, layer.width), library=library))
    np.testing.assert_array_equal(*results)


@settings(max_examples=40)
@given(st.data())
def test_a_query_s_result_depends_on_no_chunking_no_company_and_no_thread(data):
    window = data.draw(st.sampled_from([0, 3, 100, 140]))
    lengths = data.draw(st.lists(st.integers(1, 290), min_size=1, max_size=3))
    threads = data.draw(st.integers(1, 3))
    together, computed = Layer(window=window), [0] * len(lengths)
    qkv = [random_qkv(length, together.width, seed) for seed, length in enumerate(lengths)]
    tables = [list(range(20 * i, 20 * i + 20)) for i in range(len(lengths))]
    results: list[list[np.ndarray]] = [[] for _ in lengths]
    while any(done < length for done, length in zip(computed, lengths, strict=True)):
        rows, inputs, owners = [], [], []
        for i, length in enumerate(lengths):
            if computed[i] == length:
                continue
            count = data.draw(st.integers(1, length - computed[i]) | st.just(min(length - computed[i], 130)))
            rows.append(row(computed[i], count, tables[i]))
            inputs.append(qkv[i][computed[i] : computed[i] + count])
            owners.append((i, count))
            computed[i] += count
        out = together.run(rows, np.concatenate(inputs), threads)
        for i, count in owners:
            results[i].append(out[:count])
            out = out[count:]
    for numbers, found in zip(qkv, results, strict=True):
        alone = Layer(window=window).run([row(0, len(numbers), tables[0])], numbers)
        np.testing.assert_array_equal(np.concatenate(found), alone)
