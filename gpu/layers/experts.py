"""A mixture of experts in place of a layer's feed-forward block: each token goes through the few that it chooses."""

from __future__ import annotations

import attrs
import torch

from gpu.layers.linear import Linear
from gpu.layers.mlp import GatedMLP


@attrs.frozen(eq=False)
class SharedExpert:
    """One that every token goes through, times the sigmoid of a gate."""

    mlp: GatedMLP
    gate: Linear  # [1, hidden]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same shape."""
        return self.gate(x).sigmoid() * self.mlp(x)


class Experts:
    """The sum of a token's experts, weighted by its softmax over all of them.

    Experts are summed in the order of their index, so that a token's result does not depend on the tokens beside it.
    """

    def __init__(
        self,
        router: Linear,
        experts: list[GatedMLP],
        per_token: int,
        normalised: bool,
        shared: SharedExpert | None = None,
    ) -> None:
        self.router = router  # [experts, hidden]
        self.experts = experts
        self.per_token = per_token
        self.normalised = normalised
        self.shared = shared

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same shape."""
        weights, chosen = self.router(x).float().softmax(dim=-1).topk(self.per_token, dim=-1)  # [tokens, per_token]
        if self.normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        weights = weights.to(x.dtype)
        out = torch.zeros_like(x)
        for index in chosen.unique().tolist():
            token, place = torch.where(chosen == index)
            out.index_add_(0, token, self.experts[index](x[token]) * weights[token, place].unsqueeze(1))
        return out if self.shared is None else out + self.shared(x)
