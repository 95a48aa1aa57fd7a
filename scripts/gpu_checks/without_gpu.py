"""What a GPU has and a CPU has not, for trying out scripts/gpu_check on a CPU: slow, and right enough to go through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from gpu.cuda_model import DeviceParts


def cpu_parts() -> DeviceParts:
    return DeviceParts(attend_row_by_row, run_again)


def run_again(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """A recording that is none."""
    return run


def attend_row_by_row(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, 0),
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> Any:  # noqa: ANN401 (as torch's own)
    """torch.nn.attention.varlen.varlen_attn, causal, over torch's scaled_dot_product_attention."""
    assert seqused_k is not None, "it is always given here"
    outputs = []
    for row, length in enumerate(seqused_k.tolist()):
        queries = query[cu_seq_q[row] : cu_seq_q[row + 1]]
        if block_table is not None:
            keys, values = (part[block_table[row]].flatten(0, 1)[:length] for part in (key, value))
        else:
            assert cu_seq_k is not None, "keys are paged or have their places"
            keys, values = (part[cu_seq_k[row] :][:length] for part in (key, value))
        behind = torch.arange(length - len(queries), length).unsqueeze(1) - torch.arange(length)
        seen = (behind >= 0) & ((behind <= window_size[0]) if window_size[0] >= 0 else True)
        out = F.scaled_dot_product_attention(
            queries.transpose(0, 1),
            keys.transpose(0, 1),
            values.transpose(0, 1),
            attn_mask=seen,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        outputs.append(out.transpose(0, 1))
    return torch.cat(outputs)
