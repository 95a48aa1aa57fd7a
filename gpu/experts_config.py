"""A mixture of experts as config.json describes it. Made by gpu/config, read by gpu/models/decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from gpu.architectures import ExpertNames
from protocol.errors import CheckpointError


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
        )


def _whole(raw: Mapping[str, Any], *keys: str) -> int:
    """The first of the keys that is there."""
    key = next((key for key in keys if raw.get(key) is not None), keys[0])
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{key} is {value!r}, not a whole number above 0")
    return value
