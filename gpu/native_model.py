"""The model on the CPU's own kernels: weights stay as the checkpoint has them (quantised, or 16-bit), the KV cache is
float16, and a step is one call that runs its program on the kernels' threads. Used by gpu/torch_runner.

A sequence's results do not depend, to the last bit, on what is computed beside it, on how its prompt was chunked, or on
the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from gpu.block_copies import copy_blocks
from gpu.config import ModelConfig
from gpu.kernels.laid_out import LaidOutMatrix
from gpu.kernels.library import KernelLibrary, Pool
from gpu.kv_frames import KvFrames
from gpu.kv_pool import KvPool
from gpu.lora_checkpoint import AdapterWeights, LoraModule
from gpu.lora_modules import lora_modules
from gpu.model import Computed
from gpu.models.native_decoder import NativeDecoder, NativeLayer, NativeWeights, Precision
from gpu.native_batch import NativeBatch, step_of
from gpu.native_loras import NativeLoras
from protocol.lora import NO_LORA, LoraId
from protocol.step import KvCopy, Row

KV_DTYPE = torch.float16
FIRST_CAPACITY = 64
"""Tokens that the first step's buffers have room for; they double when a step needs more."""

MOST_KEPT_LOGITS = 1 << 24
"""Numbers, 64 MiB of them: more are given back after each step."""


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
        max_loras: int = 0,
        max_lora_rank: int = 1,
    ) -> None:
        self.dtype = dtype
        self._precision = precision
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self._config = config
        self._weights = weights
        # Keys lie the other way round than in torch's pool, and who has wider vectors adds in another order.
        self._kind = f"kernels of {library.lanes} lanes in {precision.name}, {config.rope.length_kind}"
        self._threads = Pool(library, threads)
        self.lora_modules: Mapping[str, LoraModule] = lora_modules(config)
        self._loras: NativeLoras | None = None
        if max_loras > 0:
            self._loras = NativeLoras(self.lora_modules, max_loras, max_lora_rank, library.lanes)
        self._pool: KvPool | None = pool
        self._decoder = self._sized(FIRST_CAPACITY)
        self._logits = torch.empty(0, self.vocab_size)

    @property
    def weights_bytes(self) -> int:
        matrices = [self._weights.embedding, *(m for layer in self._weights.layers for m in _matrices(layer))]
        if self._weights.head is not self._weights.embedding:
            matrices.append(self._weights.head)
        return sum(matrix.data.nbytes for matrix in matrices)

    def compute(self, rows: Sequence[Row], lora_ids: Sequence[LoraId] = ()) -> Computed:
        assert self._pool is not None, "compute after close"
        size = self._pool.size
        batch = NativeBatch(rows, size.block_size, self.vocab_size, size.num_blocks, self._places(lora_ids))
        if batch.tokens > self._decoder.capacity:
            self._decoder = self._sized(batch.tokens)
        self._threads.run(self._decoder.layers, batch.step)
        return Computed(torch.from_numpy(self._decoder.hidden.numbers[: batch.tokens]), batch.first_token)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.contiguous()
        if len(hidden) > self._decoder.capacity:
            # The old buffers hold `hidden` no longer than this frame does, if it is a view of them.
            self._decoder = self._sized(len(hidden))
        logits = self._logits_of(len(hidden))
        self._decoder.point_head(hidden.data_ptr(), logits.data_ptr())
        self._threads.run(self._decoder.head, step_of(len(hidden)))
        return logits

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.contiguous()
        normed = torch.empty_like(hidden)
        self._decoder.point_norm(hidden.data_ptr(), normed.data_ptr())
        self._threads.run(self._decoder.norm, step_of(len(hidden)))
        return normed

    def add_lora(self, lora_id: LoraId, weights: AdapterWeights) -> None:
        assert self._loras is not None, "an adapter for a model that has none"
        self._loras.add(lora_id, weights)

    def remove_lora(self, lora_id: LoraId) -> None:
        assert self._loras is not None, "an adapter for a model that has none"
        self._loras.remove(lora_id)

    def release_kv(self) -> None:
        assert self._pool is not None, "release after close"
        self._pool.release()
        self._logits = torch.empty(0, self.vocab_size)

    def restore_kv(self) -> None:
        assert self._pool is not None, "restore after close"
        if self._pool.is_released:
            self._pool.restore()
            self._decoder = self._sized(FIRST_CAPACITY)  # the old one's program has the old addresses

    @property
    def block_bytes(self) -> list[int]:
        assert self._pool is not None, "blocks after close"
        return [self._pool.block_bytes]

    @property
    def block_kind(self) -> str:
        assert self._pool is not None, "blocks after close"
        return f"{self._kind}, {self._pool.block_kind}"

    def copy_blocks(self, saves: Sequence[KvCopy], loads: Sequence[KvCopy], frames: KvFrames) -> None:
        assert self._pool is not None, "copies after close"
        copy_blocks(self._pool, saves, loads, frames)

    def weights(self) -> Iterable[torch.Tensor]:
        return ()  # they lie in a file that is mapped

    def close(self) -> None:
        self._threads.close()
        self._logits = torch.empty(0, self.vocab_size)
        self._pool = None

    def _places(self, lora_ids: Sequence[LoraId]) -> list[int]:
        """-1 for rows without an adapter; empty if that is all of them."""
        if self._loras is None or not any(lora_ids):
            assert not any(lora_ids), "an adapter for a model that has none"
            return []
        loras = self._loras
        return [-1 if lora_id == NO_LORA else loras.place_of(lora_id) for lora_id in lora_ids]

    def _logits_of(self, rows: int) -> torch.Tensor:
        """[rows, vocab], of the memory that the last ones had: that of fresh ones would be zeroed first, each step."""
        if rows > len(self._logits):
            if rows * self.vocab_size > MOST_KEPT_LOGITS:
                return torch.empty(rows, self.vocab_size)
            self._logits = torch.empty(rows, self.vocab_size)
        return self._logits[:rows]

    def _sized(self, tokens: int) -> NativeDecoder:
        """A decoder with room for so many tokens, rounded up to a power of two."""
        assert self._pool is not None
        keys, values = self._pool.keys, self._pool.values
        caches = {layer: (keys[layer].data_ptr(), values[layer].data_ptr()) for layer in range(self._config.num_layers)}
        return NativeDecoder(
            self._config, self._weights, caches, 1 << (tokens - 1).bit_length(), self._precision, self._loras
        )


def _matrices(layer: NativeLayer) -> list[LaidOutMatrix]:
    linears = (layer.qkv, layer.output, layer.gate_up, layer.down)
    return [matrix for linear in linears for matrix in linear.matrices]
