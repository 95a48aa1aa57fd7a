"""Log-probabilities of the model's own distribution, for sampled tokens and for prompt tokens.

From raw logits, before anything that sampling does to them. Used by gpu/torch_runner.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from protocol.messages import TokenLogprobs


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Per row of `logits` [rows, vocab] float32: the token that stands there, and the `counts` most probable ones."""
    total = logits.logsumexp(dim=1, keepdim=True)
    chosen = logits.gather(1, torch.tensor(token_ids, device=logits.device).unsqueeze(1))
    ranks = (1 + (logits > chosen).sum(dim=1)).tolist()
    own = (chosen - total).squeeze(1).tolist()
    largest, best_ids = logits.topk(min(max(counts), logits.shape[1]), dim=1)
    best = (largest - total).tolist()
    return [
        TokenLogprobs([token_id, *ids[:count]], [logprob, *values[:count]], rank)
        for token_id, ids, logprob, values, rank, count in zip(
            token_ids, best_ids.tolist(), own, best, ranks, counts, strict=True
        )
    ]
