"""Log-probabilities of the model's own distribution, for sampled tokens and for prompt tokens.

From raw logits, before anything that sampling does to them. Used by gpu/sampled_step and gpu/prompt_logprobs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpu.fetch import Fetch
from protocol.messages import TokenLogprobs


class LogprobsUnderWay:
    """Computed where the logits are, and on its way to the host."""

    def __init__(self, logits: torch.Tensor, token_ids: torch.Tensor, most: int) -> None:
        """Per row of `logits` [rows, vocab] float32: the token that stands there, of [rows] int64, and the `most` most
        probable ones. A negative token is one that failed; what is found out about its row means nothing."""
        total = logits.logsumexp(dim=1, keepdim=True)
        chosen = logits.gather(1, token_ids.clamp(min=0).unsqueeze(1))
        ranks = 1 + (logits > chosen).sum(dim=1)
        largest, best_ids = logits.topk(min(most, logits.shape[1]), dim=1)
        self._fetch = Fetch([token_ids, best_ids, (chosen - total).squeeze(1), largest - total, ranks])

    def rows(self, counts: Sequence[int]) -> list[TokenLogprobs]:
        """With so many alternatives each, none more than `most`. Waits until they are here."""
        token_ids, best_ids, own, best, ranks = (tensor.tolist() for tensor in self._fetch.wait())
        return [
            TokenLogprobs([token_id, *ids[:count]], [logprob, *values[:count]], rank)
            for token_id, ids, logprob, values, rank, count in zip(
                token_ids, best_ids, own, best, ranks, counts, strict=True
            )
        ]


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Per row of `logits` [rows, vocab] float32: the token that stands there, and the `counts` most probable ones."""
    return LogprobsUnderWay(logits, torch.tensor(token_ids, device=logits.device), max(counts)).rows(counts)
