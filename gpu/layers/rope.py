"""Rotary position embeddings: which frequencies a config.json asks for, and the rotation itself.

Kinds: default, linear, llama3 and yarn; any other is refused by name, since ignoring a scaling gives text that decays
beyond the original context without any error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch

from protocol.errors import CheckpointError

KINDS = ("default", "linear", "llama3", "yarn")


@attrs.frozen
class RopeConfig:
    """How positions turn into angles."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    """Multiplies cosine and sine (yarn)."""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], max_position_embeddings: int) -> RopeConfig:
        """Accepts rope_theta with rope_scaling ("type" or "rope_type"), and rope_parameters that holds both."""
        scaling = dict(raw.get("rope_scaling") or {}) | dict(raw.get("rope_parameters") or {})
        theta = float(scaling.get("rope_theta", raw.get("rope_theta", 10000.0)))
        kind = scaling.get("rope_type", scaling.get("type", "default")) or "default"
        if kind not in KINDS:
            raise CheckpointError(f"rope type {kind!r} is none of those that are computed: {', '.join(KINDS)}")
        if kind == "default":
            return cls(theta)
        factor = _number(scaling, "factor", kind)
        if kind == "linear":
            return cls(theta, kind, factor)
        original = int(scaling.get("original_max_position_embeddings") or max_position_embeddings)
        if kind == "llama3":
            low, high = (_number(scaling, key, kind) for key in ("low_freq_factor", "high_freq_factor"))
            if high <= low:
                raise CheckpointError(f"rope type llama3: high_freq_factor {high} is not above low_freq_factor {low}")
            return cls(theta, kind, factor, original, low, high)
        return cls(
            theta,
            kind,
            factor,
            original,
            beta_fast=float(scaling.get("beta_fast") or 32.0),
            beta_slow=float(scaling.get("beta_slow") or 1.0),
            truncate=bool(scaling.get("truncate", True)),
            attention_factor=_yarn_attention_factor(scaling, factor),
        )

    def inverse_frequencies(self, head_dim: int) -> torch.Tensor:
        """Radians per position of each pair of dimensions: [head_dim / 2], float32."""
        plain = 1.0 / self.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "llama3":
            return self._llama3(plain)
        if self.kind == "yarn":
            return self._yarn(plain, head_dim)
        return plain

    def _llama3(self, plain: torch.Tensor) -> torch.Tensor:
        """Long wavelengths are stretched by the factor, short ones kept, those between blended."""
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0.0, 1.0)
        return plain * kept + plain / self.factor * (1.0 - kept)

    def _yarn(self, plain: torch.Tensor, head_dim: int) -> torch.Tensor:
        """As llama3, but blended along the dimension's index."""

        def dimension(turns: float) -> float:
            """The (fractional) pair that turns so often within the original context."""
            wavelength = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return head_dim * math.log(wavelength) / (2 * math.log(self.theta))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        span = high - low if high != low else 0.001
        stretched = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / span).clamp(0.0, 1.0)
        return plain / self.factor * stretched + plain * (1.0 - stretched)


class RotaryEmbedding:
    """Cosines and sines of positions, computed once per step and used by every layer."""

    def __init__(self, rope: RopeConfig, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.frequencies = rope.inverse_frequencies(head_dim).to(device)  # [head_dim / 2] float32
        self.attention_factor = rope.attention_factor
        self.dtype = dtype

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens] of int64 to cosine and sine as `rotate` takes them, each [tokens, 1, head_dim]."""
        angles = torch.outer(positions.float(), self.frequencies)
        cos, sin = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
        # The first half's sine carries the rotation's minus sign.
        both = torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)
        return both[0].to(self.dtype).unsqueeze(1), both[1].to(self.dtype).unsqueeze(1)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [tokens, heads, head_dim]; the pairs are (i, i + head_dim / 2)."""
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, dims=-1), sin)


def _number(scaling: Mapping[str, Any], key: str, kind: str) -> float:
    value = scaling.get(key)
    if not isinstance(value, int | float) or value <= 0:
        raise CheckpointError(f"rope type {kind} needs {key} above 0, and it is {value!r}")
    return float(value)


def _yarn_attention_factor(scaling: Mapping[str, Any], factor: float) -> float:
    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0

    if (given := scaling.get("attention_factor")) is not None:
        return float(given)
    if (mscale := scaling.get("mscale")) and (mscale_all_dim := scaling.get("mscale_all_dim")):
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)
