"""How many KV blocks an engine has whose model lies over ranks: as many as the rank with the least room.

A block is on every rank, with the keys and values of that rank's heads and layers. Used by gpu/load_model.
"""

from __future__ import annotations

import msgspec
import torch

from gpu.groups.group import Group
from gpu.kv_pool import KvPoolSize, free_bytes, kv_pool_size
from gpu.model_shape import ModelShape
from protocol.spec import EngineSpec


def agreed_pool_size(
    spec: EngineSpec, held: ModelShape, dtype: torch.dtype, device: torch.device, ranks: Group
) -> KvPoolSize:
    """As `kv_pool_size`, of what this rank holds; all `ranks` call it once their weights are loaded, for which some may
    take longer than others. Its bytes are this rank's own. Raises CheckpointError as that does."""
    free, default = free_bytes(device, spec.num_engines)
    if device.type == "cpu":  # which the ranks of a host share; a GPU each has for itself
        free, default = free // spec.ranks_per_host, default // spec.ranks_per_host
    size = kv_pool_size(spec, held, dtype, free, default)
    if ranks.size == 1:
        return size
    counts = ranks.all_gather(torch.tensor([size.num_blocks]))
    least = msgspec.structs.replace(spec, num_gpu_blocks_override=int(counts.min()))
    return kv_pool_size(least, held, dtype, free, default)
