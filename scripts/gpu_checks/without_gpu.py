"""What a GPU has and a CPU has not, computed slowly: for trying out scripts/gpu_check on a CPU, and for the tests."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpu.cuda_model import DeviceParts
from scripts.gpu_checks.flashinfer_without_gpu import FLASHINFER


def cpu_parts() -> DeviceParts:
    return DeviceParts(varlen_attention, run_again, "eager", FLASHINFER)


def run_again(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """A recording that is none."""
    return run


def varlen_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:
    """torch.nn.attention.varlen.varlen_attn, causal, row by row in float64. Complains, as the kernel does or silently
    does not, about what it would not take."""
    assert seqused_k is not None, "it is always given here"
    tensors = [cu_seq_q, seqused_k, *(one for one in (cu_seq_k, block_table) if one is not None)]
    assert all(one.dtype == torch.int32 and one.is_contiguous() for one in tensors)
    assert (cu_seq_k is None) == (block_table is not None)
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert cu_seq_q[0] == 0
    assert cu_seq_q[-1] == len(query)
    assert (cu_seq_q.diff() <= max_q).all()
    assert (seqused_k <= max_k).all()
    assert enable_gqa
    left, right = window_size
    assert right == 0
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    for row, length in enumerate(seqused_k.tolist()):
        queries = query[cu_seq_q[row] : cu_seq_q[row + 1]].double()
        if block_table is None:
            assert cu_seq_k is not None
            keys, values = (part[cu_seq_k[row] : cu_seq_k[row + 1]] for part in (key, value))
        else:
            keys, values = (part[block_table[row].long()].flatten(0, 1) for part in (key, value))
        assert length <= len(keys)
        group = query.shape[1] // keys.shape[1]
        keys, values = (part[:length].double().repeat_interleave(group, dim=1) for part in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * (query.shape[-1] ** -0.5 if scale is None else scale)
        distance = torch.arange(length - len(queries), length).unsqueeze(1) - torch.arange(length)
        hidden = distance < 0
        if left >= 0:
            hidden |= distance > left
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        out[cu_seq_q[row] : cu_seq_q[row + 1]] = torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
    return out
