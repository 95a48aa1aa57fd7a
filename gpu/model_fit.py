"""Whether a model would fit into the memory there is, and for how long a context, from the headers of its files alone.

Used by gpu/probe, with the choices of gpu/load_model and the arithmetic of gpu/kv_pool.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open

from gpu.config import ModelConfig
from gpu.gguf_weights import GgufIndex
from gpu.kernels.laid_out_file import files_digest, laid_out_directory
from gpu.kv_dtype import kv_dtype
from gpu.kv_pool import card_share, host_shares, kv_block_bytes, kv_pool_size
from gpu.load_model import INT8, pick_device, pick_dtype
from gpu.native_model import KV_DTYPE
from gpu.native_plan import NativePlan, why_not
from gpu.weight_files import GGUF_INDEX
from gpu.weights import WeightSource, open_weights
from protocol.errors import CheckpointError
from protocol.host_memory import available_memory
from protocol.machine import ModelFit
from protocol.spec import EngineSpec

KERNELS = "the CPU kernels"


def model_fit(spec: EngineSpec, has_kernels: bool) -> ModelFit:
    """Raises CheckpointError and StartError as loading would, UnknownVariantError for an architecture that only
    transformers may compute."""
    directory = Path(spec.checkpoint)
    device = pick_device(spec.device)
    config = ModelConfig.read(directory).for_length(spec.max_model_len)
    source = open_weights(directory)
    parameters = num_parameters(directory, source)
    if has_kernels and _takes_kernels(spec, config, source, device):
        weights, kept_in, by = source.num_bytes, KV_DTYPE, KERNELS
    else:
        dtype = pick_dtype("auto" if spec.dtype == INT8 else spec.dtype, config.dtype, device)
        size = 1 if spec.quantization is not None else dtype.itemsize
        weights, kept_in = parameters * size, kv_dtype(spec.kv_cache_dtype, dtype)
        by = f"torch in {'fp8' if spec.quantization is not None else str(dtype).removeprefix('torch.')}"
    world = spec.parallel.world
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory() // world
    weights = -(-weights // world)
    left = max(0, free - weights)
    shares = card_share(left) if device.type == "cuda" else host_shares(left // spec.num_engines)
    per_rank = -(-kv_block_bytes(config, spec.block_size, kept_in) // world)
    try:
        pool = kv_pool_size(spec, config, kept_in, *(share * world for share in shares))
    except CheckpointError:
        if spec.max_model_len is not None and spec.max_model_len > config.max_position_embeddings:
            raise
        pool = None
    return ModelFit(
        architecture=config.architecture,
        computed_by=by,
        num_parameters=parameters,
        weights_bytes=weights,
        free_bytes=free,
        kv_bytes=0 if pool is None else pool.num_blocks * per_rank,
        kv_bytes_per_token=per_rank // spec.block_size,
        num_tokens=0 if pool is None else pool.num_blocks * pool.block_size,
        max_model_len=0 if pool is None else pool.max_model_len,
        limit=config.max_position_embeddings,
        on_card=device.type == "cuda",
        needs_laying_out=by == KERNELS and not _is_laid_out(spec, source),
    )


def _takes_kernels(spec: EngineSpec, config: ModelConfig, source: WeightSource, device: torch.device) -> bool:
    if device.type != "cpu" or spec.dtype not in ("auto", INT8) or spec.parallel.world > 1:
        return False
    return why_not(config, spec.block_size) is None and NativePlan(config, source).why_not() is None


def _is_laid_out(spec: EngineSpec, source: WeightSource) -> bool:
    """As some library of kernels on this machine has left it."""
    directory = laid_out_directory(Path(spec.checkpoint), spec.cache_directory)
    return directory is not None and any(directory.glob(f"laid-out-*-{files_digest(source.files)}.bin"))


def num_parameters(directory: Path, source: WeightSource) -> int:
    """As the files' headers have them."""
    if (directory / GGUF_INDEX).exists():
        index = msgspec.json.decode((directory / GGUF_INDEX).read_bytes(), type=GgufIndex)
        return sum(math.prod(tensor.shape) for tensor in index.tensors)
    total = 0
    for path in source.files:
        with safe_open(path, framework="pt") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return total
