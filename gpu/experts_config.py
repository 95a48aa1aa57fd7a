"""A mixture of experts as config.json describes it. Made by gpu/config, read by gpu/models/decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from gpu.architectures import ExpertNames
from gpu.layers.mlp import QUICK_GELU
from protocol.errors import CheckpointError, UnknownVariantError

SWIGLU_LIMIT = 7.0
"""Where config.json does not say."""


@attrs.frozen
class ExpertsConfig:
    """Which layers have experts instead of one feed-forward block, how many, and how a token chooses among them."""

    names: ExpertNames
    count: int
    per_token: int
    size: int
    """Of an expert's inner layer."""
    normalised: bool
    """Whether the chosen experts' weights are made to sum to 1."""
    shared_size: int | None
    """Of the shared expert's inner layer."""
    layers: frozenset[int]
    limit: float | None = None
    """What gates are clamped to from above, and what they act on from both sides, with 1 added to it then."""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], names: ExpertNames, num_layers: int) -> ExpertsConfig:
        """From config.json's content. Raises CheckpointError naming the key and its value."""
        count = _whole(raw, *names.count_keys)
        per_token = _whole(raw, "num_experts_per_tok")
        if per_token > count:
            raise CheckpointError(f"num_experts_per_tok {per_token} is above the number of experts {count}")
        step = _whole(raw, "decoder_sparse_step") if "decoder_sparse_step" in raw else 1
        dense = raw.get("mlp_only_layers") or []
        return cls(
            names,
            count,
            per_token,
            _whole(raw, names.size_key),
            bool(raw.get("norm_topk_prob", False)) if names.normalised is None else names.normalised,
            _whole(raw, "shared_expert_intermediate_size") if names.shared else None,
            frozenset(layer for layer in range(num_layers) if layer not in dense and (layer + 1) % step == 0),
            _swiglu_limit(raw) if names.clamped else None,
        )


def _swiglu_limit(raw: Mapping[str, Any]) -> float:
    """The gate's other number must be that of the activation that stands for it."""
    alpha, limit = raw.get("swiglu_alpha", QUICK_GELU), raw.get("swiglu_limit", SWIGLU_LIMIT)
    if alpha != QUICK_GELU:
        raise UnknownVariantError(f"swiglu_alpha {alpha!r} is not computed here, only {QUICK_GELU}")
    if not isinstance(limit, int | float) or isinstance(limit, bool) or limit <= 0:
        raise CheckpointError(f"swiglu_limit is {limit!r}, not a number above 0")
    return float(limit)


def _whole(raw: Mapping[str, Any], *keys: str) -> int:
    """The first of the keys that is there."""
    key = next((key for key in keys if raw.get(key) is not None), keys[0])
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{key} is {value!r}, not a whole number above 0")
    return value
