"""Whether a GPU's attention works here: tried once on a small pool, for the very shape of the model's heads.

What a build of torch, a card and an installed FlashAttention take together is not worth guessing: paged or not, head
sizes, data types, windows. Used by gpu/cuda_model when a model is loaded.
"""

from __future__ import annotations

from subprocess import SubprocessError

import attrs
import torch

from gpu.attention_backend import AttentionBackend, GatherBackend
from gpu.kv_pool import KvPool, KvPoolSize
from gpu.model_shape import ModelShape
from gpu.varlen_attention import KvAccess, VarlenBackend, VarlenFunction
from protocol.ids import Slot
from protocol.step import Row

SPANS = ((37, 1), (0, 9), (21, 20), (4, 1), (0, 1))
"""The trial's rows: how many tokens are in the cache, how many follow."""
PROBED_LENGTH = max(start + count for start, count in SPANS)
REFUSALS = (RuntimeError, ValueError, TypeError, OSError, AssertionError, SubprocessError)
"""What kernels, and what compiles them, say of what they do not do."""
TOLERANCE = 0.03
"""Of values around 1, in 16 bits."""


@attrs.frozen
class AttentionShape:
    """What attention in a model looks like."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    windows: tuple[int | None, ...]
    scale: float | None = None
    softcap: float | None = None


def why_not(
    function: VarlenFunction,
    access: KvAccess,
    shape: AttentionShape,
    dtype: torch.dtype,
    device: torch.device,
    fixed_max_k: int | None = None,
) -> str | None:
    """None if it gives what the reference gives, else the reason in a line."""
    backend = VarlenBackend(function, access, shape.windows, shape.block_size, device, fixed_max_k)
    return why_wrong(backend, shape, dtype, device)


def why_wrong(
    backend: AttentionBackend,
    shape: AttentionShape,
    dtype: torch.dtype,
    device: torch.device,
    kept_in: torch.dtype | None = None,
) -> str | None:
    """The same of any backend, over a pool of `kept_in`, which is `dtype` unless told."""
    rows, num_blocks = _rows(shape.block_size)
    pool = _pool(shape, num_blocks, dtype, device, kept_in or dtype)
    windows = sorted(set(shape.windows), key=lambda window: window or 0)
    reference = GatherBackend(windows, shape.block_size, dtype, device).batch(rows)
    generator = torch.Generator().manual_seed(1)
    together = shape.heads + shape.kv_heads
    heads = torch.randn(len(reference.token_ids), together, shape.head_dim, generator=generator).to(device, dtype)
    queries = heads[:, : shape.heads]  # with gaps, as in a layer
    for window in windows:
        expected = reference.attention[window].attend(queries, 0, pool, shape.scale, shape.softcap)
        try:
            batch = backend.batch(rows)
            found = batch.attention[window].attend(queries, 0, pool, shape.scale, shape.softcap)
        except REFUSALS as error:
            return str(error).partition("\n")[0]
        difference = (found.float() - expected.float()).abs().max().item()
        if not difference <= TOLERANCE:
            return f"it differs from the reference by {difference:.3g} with window {window}"
    return None


def _rows(block_size: int) -> tuple[list[Row], int]:
    """Rows over blocks in falling order, and how many blocks there are."""
    needed = [-(-(start + count) // block_size) for start, count in SPANS]
    num_blocks = sum(needed)
    blocks = list(reversed(range(num_blocks)))
    rows = []
    for index, ((start, count), size) in enumerate(zip(SPANS, needed, strict=True)):
        rows.append(Row(Slot(index), start, [0] * count, blocks[:size], False))
        blocks = blocks[size:]
    return rows, num_blocks


def _pool(
    shape: AttentionShape, num_blocks: int, dtype: torch.dtype, device: torch.device, kept_in: torch.dtype
) -> KvPool:
    model = ModelShape(
        vocab_size=1,
        num_layers=1,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=1,
        windows=(None,),
        dtype=None,
    )
    pool = KvPool(KvPoolSize(num_blocks, shape.block_size, 1, 0), model, kept_in, device, dtype)
    generator = torch.Generator().manual_seed(0)
    for tensor in (pool.keys, pool.values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return pool
