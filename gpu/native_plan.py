"""Which tensors of a checkpoint become which matrices of the CPU kernels, and what the kernels do not do.

Used by gpu/load_model: to lay the weights out, and to put what was laid out together for gpu/native_model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gpu.config import ModelConfig
from gpu.kernels.laid_out import LaidOutMatrix, Stack
from gpu.kernels.layout import FORMATS
from gpu.models.decoder_loader import tied_embedding
from gpu.models.native_decoder import NativeLayer, NativeLinear, NativeWeights
from gpu.weights import WeightLoader, WeightSource


def why_not(config: ModelConfig, block_size: int) -> str | None:
    """What the kernels do not do of this model, or None."""
    parts = [name for name, has in (("sinks", config.sinks), ("experts", config.experts is not None)) if has]
    if parts:
        return f"{config.architecture} has {' and '.join(parts)}, which the kernels do not compute"
    if not config.is_plain:
        return f"{config.architecture} has parts that the kernels do not compute"
    sizes = {
        "hidden_size": (config.hidden_size, 32),
        "intermediate_size": (config.intermediate_size, 32),
        "heads times head_dim": (config.num_heads * config.head_dim, 32),
        "head_dim": (config.head_dim, 16),
        "block_size": (block_size, 16),
    }
    for name, (size, step) in sizes.items():
        if size % step:
            return f"{name} {size} is no multiple of {step}"
    if config.head_dim > 256:
        return f"head_dim {config.head_dim} is above 256"
    return None


class NativePlan:
    """Which tensors become which matrices: needed to lay them out, and again to find them."""

    def __init__(self, config: ModelConfig, source: WeightSource) -> None:
        self._config = config
        self._source = source
        hidden, queries = config.hidden_size, config.num_heads * config.head_dim
        embedding, head = tied_embedding(config, source)
        self.embedding = self._stacks([(embedding, config.vocab_size)], hidden)
        self.head = self._stacks([(head, config.vocab_size)], hidden)
        self.layers: list[dict[str, list[Stack]]] = []
        keys = config.num_kv_heads * config.head_dim
        for layer in range(config.num_layers):
            prefix = f"model.layers.{layer}."
            qkv = [
                (f"{prefix}self_attn.{name}_proj.weight", rows)
                for name, rows in zip("qkv", (queries, keys, keys), strict=True)
            ]
            gate_up = [(f"{prefix}mlp.{name}_proj.weight", config.intermediate_size) for name in ("gate", "up")]
            self.layers.append(
                {
                    "qkv": self._stacks(qkv, hidden),
                    "output": self._stacks([(f"{prefix}self_attn.o_proj.weight", hidden)], queries),
                    "gate_up": self._stacks(gate_up, hidden),
                    "down": self._stacks([(f"{prefix}mlp.down_proj.weight", hidden)], config.intermediate_size),
                }
            )

    @property
    def stacks(self) -> list[Stack]:
        """All of them, each once."""
        lists = [self.embedding, self.head, *(stacks for layer in self.layers for stacks in layer.values())]
        return list({stack.key: stack for stacks in lists for stack in stacks}.values())

    @property
    def kind(self) -> str:
        """The type of most weights, as GGUF names it."""
        sizes: Counter[str] = Counter()
        for stack in self.stacks:
            sizes[stack.kind] += stack.rows * stack.columns
        return sizes.most_common(1)[0][0]

    def why_not(self) -> str | None:
        """What the kernels do not read of these weights, or None."""
        for stack in self.stacks:
            if stack.kind not in FORMATS:
                return f"tensor {stack.key} has type {stack.kind}"
        if self.kind == "F32":
            return "its weights are float32"
        return None

    def weights(self, laid_out: dict[str, LaidOutMatrix], loader: WeightLoader) -> NativeWeights:
        """Put laid-out matrices and the checkpoint's vectors together."""
        config = self._config
        return NativeWeights(
            laid_out[self.embedding[0].key],
            [self._layer(index, laid_out, loader) for index in range(config.num_layers)],
            _vector(loader, [("model.norm.weight", config.hidden_size)]),
            laid_out[self.head[0].key],
            config.rope.inverse_frequencies(config.head_dim).numpy(),
        )

    def _layer(self, index: int, laid_out: dict[str, LaidOutMatrix], loader: WeightLoader) -> NativeLayer:
        config, stacks, prefix = self._config, self.layers[index], f"model.layers.{index}."
        hidden, head_dim = config.hidden_size, config.head_dim

        def linear(name: str, biased: bool) -> NativeLinear:
            parts = [part for stack in stacks[name] for part in stack.parts]
            biases = [(f"{tensor.removesuffix('.weight')}.bias", rows) for tensor, rows in parts]
            return NativeLinear(
                [laid_out[stack.key] for stack in stacks[name]], _vector(loader, biases) if biased else None
            )

        def norm(name: str, size: int) -> np.ndarray:
            return _vector(loader, [(f"{prefix}{name}.weight", size)])

        return NativeLayer(
            norm("input_layernorm", hidden),
            linear("qkv", config.qkv_bias),
            norm("self_attn.q_norm", head_dim) if config.qk_norm else None,
            norm("self_attn.k_norm", head_dim) if config.qk_norm else None,
            linear("output", config.output_bias),
            norm("post_attention_layernorm", hidden),
            linear("gate_up", config.mlp_bias),
            linear("down", config.mlp_bias),
        )

    def _stacks(self, parts: Sequence[tuple[str, int]], columns: int) -> list[Stack]:
        """Neighbours of one type become one matrix."""
        stacks: list[Stack] = []
        for name, rows in parts:
            kind = self._source.kind(name, (rows, columns))
            if stacks and stacks[-1].kind == kind:
                stacks[-1] = Stack(kind, (*stacks[-1].parts, (name, rows)), columns)
            else:
                stacks.append(Stack(kind, ((name, rows),), columns))
        return stacks


def _vector(loader: WeightLoader, parts: Sequence[tuple[str, int]]) -> np.ndarray:
    return loader.vector(parts).numpy()
