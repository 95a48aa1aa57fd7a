"""Llama-shaped models of random weights: the shapes are real, the words are not. For the other checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from gpu.config import ModelConfig
from gpu.span import Span
from protocol.ids import Slot
from protocol.step import Row

DEVIATION = 0.02
BLOCK_SIZE = 16  # as EngineSpec's default


@attrs.frozen
class Shape:
    """Sizes of a Llama."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int

    def raw_config(self) -> dict[str, Any]:
        """As config.json has it."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        }

    def config(self) -> ModelConfig:
        return ModelConfig.from_dict(self.raw_config())


TINY = Shape("tiny", 64, 96, 2, 4, 2, 320)
SMALL = Shape("small", 1024, 2816, 2, 16, 4, 4096)
"""For numerics: two layers of ordinary width."""
LLAMA_1B = Shape("1B", 2048, 8192, 16, 32, 8, 128256)
LLAMA_8B = Shape("8B", 4096, 14336, 32, 32, 8, 128256)


class RandomWeights:
    """Implements gpu.weights.WeightSource: every tensor that is asked for exists."""

    num_bytes = 1

    def __init__(self, device: torch.device) -> None:
        self.files: list[Path] = []
        self._random = torch.Generator(device).manual_seed(0)

    def __contains__(self, name: str) -> bool:
        return True

    def read(self, name: str, into: torch.Tensor) -> int:
        if into.ndim == 1:
            into.fill_(1.0)  # norms
        else:
            into.normal_(0.0, DEVIATION, generator=self._random)
        return into.nbytes

    def read_cut(self, name: str, into: torch.Tensor, rows: Span, columns: Span | None) -> int:
        return self.read(name, into)

    def kind(self, name: str, shape: tuple[int, int]) -> str:
        return "F32"

    def raw(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        raise NotImplementedError("random weights are made on the device, not kept as bytes")


def decode_rows(batch: int, context: int) -> list[Row]:
    """`batch` sequences that each compute the token behind `context` others, over blocks of their own."""
    blocks = context // BLOCK_SIZE + 1
    return [
        Row(Slot(i), context, [(7 * i + 1) % 300], list(range(i * blocks, (i + 1) * blocks)), True)
        for i in range(batch)
    ]
