"""Which rotary position embeddings a config.json asks for. Read by gpu/config, used by gpu/layers/rope.

Kinds: default, linear, llama3, yarn and longrope; any other is refused by name, since ignoring a scaling gives text
that decays beyond the original context without any error.

There is one rotation for all: of pairs (i, i + head_dim / 2), over the whole head. Models that rotate neighbours, or
only a part of each head, have their queries' and keys' dimensions reordered when they are loaded (`head_order`), with
frequency 0 for what is not rotated. Scores are sums over dimensions, so that their order does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch

from gpu.architectures import Architecture
from protocol.errors import CheckpointError, UnknownVariantError

KINDS = ("default", "linear", "llama3", "yarn", "longrope")
LOCAL_THETA = 10000.0


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
    """Multiplies cosine and sine (yarn, longrope)."""
    partial_factor: float = 1.0
    """The part of each head that is rotated: its first dimensions."""
    interleaved: bool = False
    """The pairs are neighbours."""
    short_factors: tuple[float, ...] = ()
    """By pair, what the frequencies are divided by in contexts up to the original length (longrope) …"""
    long_factors: tuple[float, ...] = ()
    """… and in longer ones."""
    is_long: bool = False

    @classmethod
    def from_config(
        cls, raw: Mapping[str, Any], traits: Architecture, head_dim: int, max_position_embeddings: int
    ) -> tuple[RopeConfig, RopeConfig | None]:
        """The model's rotation, and that of layers with a window where it is another one. Raises CheckpointError."""
        parameters = dict(raw.get("rope_parameters") or {})
        by_kind = {key: value for key, value in parameters.items() if isinstance(value, dict)}
        if not by_kind:
            rope = cls.from_dict(raw, max_position_embeddings, traits)
            local = cls(float(raw.get("rope_local_base_freq") or LOCAL_THETA)) if traits.local_rope else None
        elif traits.local_rope and set(by_kind) <= {"full_attention", "sliding_attention"}:
            rope, local = (
                cls.from_dict(
                    {**raw, "rope_scaling": None, "rope_parameters": by_kind.get(kind)}, max_position_embeddings, traits
                )
                for kind in ("full_attention", "sliding_attention")
            )
        else:
            raise UnknownVariantError(f"rope_parameters by {', '.join(by_kind)} are not computed here")
        rope.check(head_dim)
        return rope, local

    @classmethod
    def from_dict(
        cls,
        raw: Mapping[str, Any],
        max_position_embeddings: int,
        traits: Architecture = Architecture(),  # noqa: B008
    ) -> RopeConfig:
        """Accepts rope_theta with rope_scaling ("type" or "rope_type"), and rope_parameters that holds both."""
        scaling = dict(raw.get("rope_scaling") or {}) | dict(raw.get("rope_parameters") or {})
        theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0)
        kind = scaling.get("rope_type", scaling.get("type", "default")) or "default"
        partial = scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
        plain = cls(
            theta,
            partial_factor=traits.partial_rotary_factor if partial is None else float(partial),
            interleaved=traits.interleaved_rope,
        )
        if kind == "su" or (kind == "yarn" and "long_factor" in scaling):
            kind = "longrope"  # as it was called first
        if kind not in KINDS:
            raise UnknownVariantError(f"rope type {kind!r} is none of those that are computed: {', '.join(KINDS)}")
        if kind == "default":
            return plain
        original = raw.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings")
        original = int(original or max_position_embeddings)
        if kind == "longrope":
            return plain._longrope(scaling, original, max_position_embeddings)
        plain = attrs.evolve(plain, kind=kind, factor=_number(scaling, "factor", kind))
        if kind == "linear":
            return plain
        plain = attrs.evolve(plain, original_max_position_embeddings=original)
        if kind == "llama3":
            low, high = (_number(scaling, key, kind) for key in ("low_freq_factor", "high_freq_factor"))
            if high <= low:
                raise CheckpointError(f"rope type llama3: high_freq_factor {high} is not above low_freq_factor {low}")
            return attrs.evolve(plain, low_freq_factor=low, high_freq_factor=high)
        return attrs.evolve(
            plain,
            beta_fast=float(scaling.get("beta_fast") or 32.0),
            beta_slow=float(scaling.get("beta_slow") or 1.0),
            truncate=bool(scaling.get("truncate", True)),
            attention_factor=_yarn_attention_factor(scaling, plain.factor),
        )

    def _longrope(self, scaling: Mapping[str, Any], original: int, max_position_embeddings: int) -> RopeConfig:
        short, long = (tuple(scaling.get(f"{name}_factor") or ()) for name in ("short", "long"))
        for factors in (short, long):
            if not factors or not all(isinstance(factor, int | float) and factor > 0 for factor in factors):
                raise CheckpointError("rope type longrope needs short_factor and long_factor, lists of numbers above 0")
        factor = float(scaling.get("factor") or max_position_embeddings / original)
        magnitude = 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(original))
        return attrs.evolve(
            self,
            kind="longrope",
            factor=factor,
            original_max_position_embeddings=original,
            attention_factor=float(scaling.get("attention_factor") or magnitude),
            short_factors=short,
            long_factors=long,
        ).for_length(max_position_embeddings)

    def check(self, head_dim: int) -> None:
        """Raises CheckpointError if heads of this size cannot be rotated so."""
        rotated = self.rotated(head_dim)
        if not 0 < rotated <= head_dim or rotated % 2 or head_dim % 2:
            raise CheckpointError(f"partial_rotary_factor {self.partial_factor} of head_dim {head_dim} is {rotated}")
        for factors in (self.short_factors, self.long_factors):
            if self.kind == "longrope" and len(factors) != rotated // 2:
                raise CheckpointError(
                    f"rope type longrope has {len(factors)} factors, and {rotated // 2} pairs of dimensions are rotated"
                )

    @property
    def length_kind(self) -> str:
        """For what lengths the frequencies are: keys of the one are nothing to the other."""
        return "long" if self.is_long else "short"

    def for_length(self, max_model_len: int) -> RopeConfig:
        """With the frequencies for sequences up to this length.

        A model has one set for short contexts and one for long ones, and keys that are cached with one do not go with
        queries of the other: so the longest sequence that may come decides for all.
        """
        if self.kind != "longrope":
            return self
        return attrs.evolve(self, is_long=max_model_len > self.original_max_position_embeddings)

    def rotated(self, head_dim: int) -> int:
        """How many dimensions of a head are rotated."""
        return int(head_dim * self.partial_factor)

    def head_order(self, head_dim: int) -> torch.Tensor | None:
        """Which dimension of the checkpoint's heads stands at which place of ours, [head_dim] int64; None: the same."""
        rotated = self.rotated(head_dim)
        if rotated == head_dim and not self.interleaved:
            return None
        dimension = torch.arange(rotated)
        pairs = dimension.view(-1, 2).t() if self.interleaved else dimension.view(2, -1)
        kept = torch.arange(rotated, head_dim).view(2, -1)
        return torch.cat([pairs, kept], dim=1).flatten()

    def inverse_frequencies(self, head_dim: int) -> torch.Tensor:
        """Radians per position of each pair of dimensions: [head_dim / 2], float32; 0 for what is not rotated."""
        rotated = self.rotated(head_dim)
        return torch.cat([self._rotated_frequencies(rotated), torch.zeros((head_dim - rotated) // 2)])

    def magnitudes(self, head_dim: int) -> float | torch.Tensor:
        """What multiplies cosine and sine: one number, or one for each pair of dimensions, [head_dim / 2] float32."""
        rotated = self.rotated(head_dim)
        if rotated == head_dim or self.attention_factor == 1.0:
            return self.attention_factor
        return torch.cat([torch.full((rotated // 2,), self.attention_factor), torch.ones((head_dim - rotated) // 2)])

    def _rotated_frequencies(self, rotated: int) -> torch.Tensor:
        plain = 1.0 / self.theta ** (torch.arange(0, rotated, 2, dtype=torch.float32) / rotated)
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "llama3":
            return self._llama3(plain)
        if self.kind == "yarn":
            return self._yarn(plain, rotated)
        if self.kind == "longrope":
            return plain / torch.tensor(self.long_factors if self.is_long else self.short_factors)
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
