"""A mixture of experts in place of a layer's feed-forward block: each token goes through the few that it chooses."""

from __future__ import annotations

import attrs
import torch

from gpu.layers.linear import Linear
from gpu.layers.mlp import GatedMLP
from gpu.layers.parallel import Combine


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
    Where ranks share them, each has some of the experts or a part of each, all sum what they have, and `combine` makes
    one sum of these.
    """

    def __init__(
        self,
        router: Linear,
        experts: list[GatedMLP],
        per_token: int,
        normalised: bool,
        shared: SharedExpert | None = None,
        first: int = 0,
        combine: Combine | None = None,
    ) -> None:
        """`experts` are those from `first` on that are here."""
        self.router = router  # [experts, hidden]
        self.experts = experts
        self.per_token = per_token
        self.normalised = normalised
        self.shared = shared
        self.first = first
        self.combine = combine

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same shape."""
        weights, chosen = self.router(x).float().softmax(dim=-1).topk(self.per_token, dim=-1)  # [tokens, per_token]
        if self.normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        weights = weights.to(x.dtype)
        out = torch.zeros_like(x)
        for index in chosen.unique().tolist():
            if not 0 <= index - self.first < len(self.experts):
                continue
            token, place = torch.where(chosen == index)
            out.index_add_(0, token, self.experts[index - self.first](x[token]) * weights[token, place].unsqueeze(1))
        out = out if self.shared is None else out + self.shared(x)
        return out if self.combine is None else self.combine(out)
