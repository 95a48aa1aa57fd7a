"""What a model makes of queries and keys before the softmax, and attention for what torch's SDPA does not do of it.

Used by gpu/attention.
"""

from __future__ import annotations

import attrs
import torch


@attrs.frozen(eq=False)
class Scores:
    """As gpu.attention.PlannedAttention says."""

    scale: float | None
    softcap: float | None
    sinks: torch.Tensor | None
    """[heads]"""

    @property
    def are_plain(self) -> bool:
        """Whether SDPA computes them."""
        return self.softcap is None and self.sinks is None

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """As SDPA, with [..., kv_heads, positions, head_dim] and a mask to be added; `sinks`, which are those of the
        queries' heads, [kv_heads, queries, 1] or [kv_heads, 1, 1]."""
        scores = queries @ keys.transpose(-1, -2) * (queries.shape[-1] ** -0.5 if self.scale is None else self.scale)
        if self.softcap is not None:
            scores = self.softcap * (scores / self.softcap).tanh()
        scores = scores + mask
        weights = scores.softmax(dim=-1, dtype=torch.float32)
        if sinks is not None:
            # What all keys together have of a softmax over one score more.
            weights *= (scores.float().logsumexp(dim=-1, keepdim=True) - sinks.float()).sigmoid()
        return weights.to(values.dtype) @ values
