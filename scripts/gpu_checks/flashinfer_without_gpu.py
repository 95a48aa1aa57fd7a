"""Stand-ins for flashinfer's wrappers, which run on GPUs only: flashinfer 0.7's calls, computed row by row in float64.

They complain about what the package would not take, and a plan is good until the next one. For trying out
scripts/gpu_check on a CPU, and for the tests.
"""

from __future__ import annotations

from typing import Any

import torch

from gpu.flashinfer_attention import FlashInfer


class Wrapper:
    """What both have in common."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert kv_layout == "NHD"

    def remember(
        self,
        begins: torch.Tensor,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        heads: tuple[int, int, int],
        page_size: int,
        scores: dict[str, Any],
    ) -> None:
        for one in (begins, indptr, indices, last_page_len):
            assert one.dtype == torch.int32
        assert indptr[-1] == len(indices)
        assert len(indptr) == len(begins) == len(last_page_len) + 1
        assert (last_page_len >= 1).all()
        assert (last_page_len <= page_size).all()
        self._rows = begins, indptr, indices, last_page_len
        self._heads, self._page_size, self._scores = heads, page_size, scores

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        *args: object,
        out: torch.Tensor | None = None,
        window_left: int | None = None,
    ) -> torch.Tensor:
        begins, indptr, indices, last_page_len = self._rows
        heads, kv_heads, head_dim = self._heads
        assert q.shape == (begins[-1], heads, head_dim)
        assert q.is_contiguous()
        assert q.dtype == self._scores["q_data_type"]
        result = torch.empty_like(q)
        for row in range(len(last_page_len)):
            pages = indices[indptr[row] : indptr[row + 1]].long()
            length = (len(pages) - 1) * self._page_size + int(last_page_len[row])
            queries = q[begins[row] : begins[row + 1]].double()
            keys, values = (self._read(cache, pages)[:length] for cache in paged_kv_cache)
            keys, values = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (keys, values))
            scale = self._scores["sm_scale"]
            scores = torch.einsum("qhd,khd->hqk", queries, keys) * (head_dim**-0.5 if scale is None else scale)
            if cap := self._scores["logits_soft_cap"]:
                scores = cap * (scores / cap).tanh()
            distance = torch.arange(length - len(queries), length).unsqueeze(1) - torch.arange(length)
            hidden = distance < 0
            if (left := self._scores["window_left"]) >= 0:
                hidden |= distance > left
            weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
            result[begins[row] : begins[row + 1]] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
        return result

    def _read(self, cache: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        assert cache.dtype == self._scores["kv_data_type"]
        assert cache.shape[1] == self._page_size
        return torch.stack([cache[page] for page in pages]).flatten(0, 1).double()


class DecodeWrapper(Wrapper):
    """flashinfer.BatchDecodeWithPagedKVCacheWrapper"""

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        **scores: object,
    ) -> None:
        begins = torch.arange(len(indptr), dtype=torch.int32)
        heads = num_qo_heads, num_kv_heads, head_dim
        self.remember(begins, indptr, indices, last_page_len, heads, page_size, _known(scores))


class PrefillWrapper(Wrapper):
    """flashinfer.BatchPrefillWithPagedKVCacheWrapper"""

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        causal: bool = False,
        **scores: object,
    ) -> None:
        assert causal
        heads = num_qo_heads, num_kv_heads, head_dim_qk
        self.remember(
            qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, heads, page_size, _known(scores)
        )


def _known(scores: dict[str, object]) -> dict[str, Any]:
    """Of the keywords of both plans."""
    assert scores.keys() == {"window_left", "logits_soft_cap", "sm_scale", "q_data_type", "kv_data_type"}
    return scores


_WRAPPERS: tuple[Any, Any] = (DecodeWrapper, PrefillWrapper)  # their keywords are narrower than PagedWrapper's
FLASHINFER = FlashInfer(*_WRAPPERS, workspace_bytes=64)
