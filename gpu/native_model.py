"""The model on the CPU's own kernels: weights stay as the checkpoint has them (quantised, or 16-bit), the KV cache is
float16, and a step is one call that runs its program on the kernels' threads. Used by gpu/torch_runner.

A sequence's results do not depend, to the last bit, on what is computed beside it, on how its prompt was chunked, or on
the number of threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from gpu.config import ModelConfig
from gpu.kernels.laid_out import LaidOutMatrix, Stack
from gpu.kernels.layout import FORMATS
from gpu.kernels.library import KernelLibrary, Pool
from gpu.kv_pool import KvPool
from gpu.model import Computed
from gpu.models.decoder import tied_embedding
from gpu.models.native_decoder import NativeDecoder, NativeLayer, NativeLinear, NativeWeights, Precision
from gpu.native_batch import NativeBatch, step_of
from gpu.weights import WeightLoader, WeightSource
from protocol.step import Row

KV_DTYPE = torch.float16
FIRST_CAPACITY = 64
"""Tokens that the first step's buffers have room for; they double when a step needs more."""


class NativeModel:
    """Implements gpu.model.Model."""

    device = torch.device("cpu")

    def __init__(
        self,
        library: KernelLibrary,
        threads: int,
        config: ModelConfig,
        weights: NativeWeights,
        dtype: str,
        pool: KvPool,
        precision: Precision = Precision.FINE,
    ) -> None:
        self.dtype = dtype
        self._precision = precision
        self.vocab_size = config.vocab_size
        self._config = config
        self._weights = weights
        self._threads = Pool(library, threads)
        self._pool: KvPool | None = pool
        self._decoder = self._sized(FIRST_CAPACITY)

    @property
    def weights_bytes(self) -> int:
        matrices = [self._weights.embedding, *(m for layer in self._weights.layers for m in _matrices(layer))]
        if self._weights.head is not self._weights.embedding:
            matrices.append(self._weights.head)
        return sum(matrix.data.nbytes for matrix in matrices)

    def compute(self, rows: Sequence[Row]) -> Computed:
        assert self._pool is not None, "compute after close"
        batch = NativeBatch(rows, self._pool.size.block_size)
        if batch.tokens > self._decoder.capacity:
            self._decoder = self._sized(batch.tokens)
        self._threads.run(self._decoder.layers, batch.step)
        return Computed(torch.from_numpy(self._decoder.hidden.numbers[: batch.tokens]), batch.first_token)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.contiguous()
        if len(hidden) > self._decoder.capacity:
            # The old buffers hold `hidden` no longer than this frame does, if it is a view of them.
            self._decoder = self._sized(len(hidden))
        logits = torch.empty(len(hidden), self._config.vocab_size)
        self._decoder.point_head(hidden.data_ptr(), logits.data_ptr())
        self._threads.run(self._decoder.head, step_of(len(hidden)))
        return logits

    def close(self) -> None:
        self._threads.close()
        self._pool = None

    def _sized(self, tokens: int) -> NativeDecoder:
        """A decoder with room for so many tokens, rounded up to a power of two."""
        assert self._pool is not None
        keys, values = self._pool.keys, self._pool.values
        caches = {layer: (keys[layer].data_ptr(), values[layer].data_ptr()) for layer in range(self._config.num_layers)}
        return NativeDecoder(self._config, self._weights, caches, 1 << (tokens - 1).bit_length(), self._precision)


def why_not(config: ModelConfig, block_size: int) -> str | None:
    """What the kernels do not do of this model, or None."""
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


def _matrices(layer: NativeLayer) -> list[LaidOutMatrix]:
    linears = (layer.qkv, layer.output, layer.gate_up, layer.down)
    return [matrix for linear in linears for matrix in linear.matrices]


def _vector(loader: WeightLoader, parts: Sequence[tuple[str, int]]) -> np.ndarray:
    return loader.vector(parts).numpy()
