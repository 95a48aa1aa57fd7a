"""Rotary position embeddings: the rotation itself."""

from __future__ import annotations

import torch

from gpu.rope_config import RopeConfig


class RotaryEmbedding:
    """Cosines and sines of positions, computed once per step and used by every layer."""

    def __init__(self, rope: RopeConfig, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.frequencies = rope.inverse_frequencies(head_dim).to(device)  # [head_dim / 2] float32
        magnitudes = rope.magnitudes(head_dim)
        self.magnitudes = magnitudes.to(device) if isinstance(magnitudes, torch.Tensor) else magnitudes
        self.dtype = dtype

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens] of int64 to cosine and sine as `rotate` takes them, each [tokens, 1, head_dim]."""
        angles = torch.outer(positions.float(), self.frequencies)
        cos, sin = angles.cos() * self.magnitudes, angles.sin() * self.magnitudes
        # The first half's sine carries the rotation's minus sign.
        both = torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)
        return both[0].to(self.dtype).unsqueeze(1), both[1].to(self.dtype).unsqueeze(1)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [tokens, heads, head_dim]; the pairs are (i, i + head_dim / 2)."""
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, dims=-1), sin)
