"""The paged KV cache: one tensor of blocks per layer for keys and one for values, and how many blocks there are.

The scheduler decides which block holds what (block tables in the step plan); the pool only stores and gathers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np
import torch

from gpu.kv_dtype import is_fp8, rounded
from gpu.model_shape import ModelShape
from protocol.errors import CheckpointError
from protocol.host_memory import available_memory
from protocol.spec import EngineSpec

GIBIBYTE = 2**30
CPU_SHARE = 0.25
CPU_DEFAULT_BYTES = GIBIBYTE
CUDA_SHARE = 0.85


@attrs.frozen
class KvPoolSize:
    """How much the pool holds, and how long a sequence may then be."""

    num_blocks: int
    block_size: int
    max_model_len: int
    num_bytes: int


def kv_pool_size(spec: EngineSpec, config: ModelShape, dtype: torch.dtype, free: int, default: int) -> KvPoolSize:
    """Pick the number of blocks: the override, else what fits into kv_cache_memory_bytes, else into `default` bytes,
    where the default grows up to `free` bytes to hold one sequence of full length.

    max_model_len is cut to what the pool holds. Raises CheckpointError if not even one block fits.
    """
    limit = config.max_position_embeddings
    if spec.max_model_len is not None and spec.max_model_len > limit:
        raise CheckpointError(
            f"--max-model-len {spec.max_model_len} is above the model's own limit of {limit} tokens: leave it out or "
            "lower it"
        )
    wanted = spec.max_model_len or limit
    block_bytes = kv_block_bytes(config, spec.block_size, dtype)
    blocks_for_one = -(-wanted // spec.block_size)
    if spec.num_gpu_blocks_override is not None:
        num_blocks = spec.num_gpu_blocks_override
    elif spec.kv_cache_memory_bytes is not None:
        num_blocks = spec.kv_cache_memory_bytes // block_bytes
    else:
        num_blocks = min(max(default // block_bytes, blocks_for_one), free // block_bytes)
    if num_blocks < 1:
        raise CheckpointError(_no_room(spec, block_bytes, free))
    max_model_len = min(wanted, num_blocks * spec.block_size)
    return KvPoolSize(num_blocks, spec.block_size, max_model_len, num_blocks * block_bytes)


def _no_room(spec: EngineSpec, block_bytes: int, free: int) -> str:
    block = f"one block of {spec.block_size} tokens takes {block_bytes}"
    if spec.kv_cache_memory_bytes is not None:  # less than what was asked for, where a draft model has its part of it
        return f"--kv-cache-memory-bytes gives the KV cache {spec.kv_cache_memory_bytes} bytes, and {block}: raise it"
    return (
        f"the KV cache may have {free} bytes of the memory that is free now, and {block}: end what else takes memory, "
        "or serve a smaller model"
    )


def kv_block_bytes(config: ModelShape, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return 2 * config.num_layers * block_size * config.num_kv_heads * config.head_dim * dtype.itemsize


def free_bytes(device: torch.device, num_engines: int = 1) -> tuple[int, int]:
    """Bytes that the pool may take at most, and by default, on this device as it is now (weights loaded), if as many
    engines share the machine, of whose GPUs each has its own (gpu/cards)."""
    if device.type == "cuda":
        return card_share(torch.cuda.mem_get_info(device)[0])
    return host_shares(available_memory() // num_engines)


def card_share(free: int) -> tuple[int, int]:
    """The same, of a GPU's memory that is free."""
    share = int(free * CUDA_SHARE)
    return share, share


def host_shares(available: int) -> tuple[int, int]:
    """The same, of the host's memory that one engine may take."""
    return available // 2, min(int(available * CPU_SHARE), CPU_DEFAULT_BYTES)


class KvPool:
    """keys and values: [layers, num_blocks, block_size, kv_heads, head_dim]."""

    def __init__(
        self,
        size: KvPoolSize,
        config: ModelShape,
        dtype: torch.dtype,
        device: torch.device,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        """Kept in `dtype`; gathered in `compute_dtype`, which is the same unless told."""
        self.size = size
        self.compute_dtype = compute_dtype or dtype
        self._heads = (config.num_kv_heads, config.head_dim)
        self._shape = (config.num_layers, size.num_blocks, size.block_size, *self._heads)
        self._dtype = dtype
        self._device = device
        self._take()

    def _take(self) -> None:
        layers, num_blocks, block_size = self._shape[:3]
        # Zeroed, since attention multiplies what lies behind a sequence's end with 0: it must be a number.
        # Both or none: there may be no room for the second.
        keys, values = (_zeros(self._shape, self._dtype, self._device) for _ in range(2))
        self.keys, self.values = keys, values
        # The same memory as rows: by slot (one token) and by block, which a gather copies whole.
        self._slots = [self._rows(layer, num_blocks * block_size) for layer in range(layers)]
        self._blocks = [self._rows(layer, num_blocks) for layer in range(layers)]

    @property
    def is_on_host(self) -> bool:
        return self._device.type == "cpu"

    @property
    def block_bytes(self) -> int:
        """Of one block, keys and values of all layers."""
        return 2 * math.prod(self._shape) // self._shape[1] * self._dtype.itemsize

    @property
    def block_kind(self) -> str:
        """What a block's numbers are and how many; in which order they lie, their writer knows."""
        layers, _, *inner = self._shape
        return f"{self._dtype} {layers}x{'x'.join(map(str, inner))}".removeprefix("torch.")

    def bytes_by_block(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The memory of keys and of values, [layers, num_blocks, bytes] uint8 each."""
        assert not self.is_released, "a pool without memory has no blocks"
        layers, num_blocks = self._shape[:2]
        keys, values = (half.view(torch.uint8).view(layers, num_blocks, -1) for half in (self.keys, self.values))
        return keys, values

    @property
    def is_released(self) -> bool:
        return not self._slots

    def release(self) -> None:
        """Give the memory back; nothing may be computed until `restore`."""
        self._slots, self._blocks = [], []
        self.keys = self.values = torch.empty(0, dtype=self._dtype, device=self._device)

    def restore(self) -> None:
        """Have memory again, at another address and empty, if it was given back. Raises torch's or Python's error, and
        has none, where there is no room."""
        if self.is_released:
            self._take()

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store [tokens, kv_heads, head_dim] at slots [tokens] (block * block_size + offset) of a layer."""
        for rows, new in zip(self._slots[layer], (keys, values), strict=True):
            rows.index_copy_(0, slots, _movable(rounded(new.flatten(1), self._dtype)))

    def gather(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the blocks [count] one after the other: each [count * block_size, kv_heads, head_dim]."""
        found = (rows.index_select(0, blocks).view(self._dtype) for rows in self._blocks[layer])
        keys, values = (rows.view(-1, *self._heads).to(self.compute_dtype) for rows in found)
        return keys, values

    def clear(self, blocks: torch.Tensor) -> None:
        """Zero the blocks [count] in every layer."""
        _movable(self.keys).index_fill_(1, blocks, 0)
        _movable(self.values).index_fill_(1, blocks, 0)

    def _rows(self, layer: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _movable(self.keys[layer]).view(count, -1), _movable(self.values[layer]).view(count, -1)


def _movable(x: torch.Tensor) -> torch.Tensor:
    """The same memory in a type whose rows torch can move: bytes for 8-bit floats, whose zero is a byte of 0."""
    return x.view(torch.uint8) if is_fp8(x.dtype) else x


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU of memory that the system hands out page by page when it is first written. torch.zeros would
    write it all, and a pool is rarely full."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    untouched = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(untouched).view(dtype).view(*shape)
