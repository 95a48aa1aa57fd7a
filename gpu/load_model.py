"""From an engine's spec to a model that computes: which implementation, in what data type, with how large a KV pool.

Used by gpu/torch_runner. "auto" on a CPU is the kernels (gpu/native_model) for weights of 16 bits and less, as far as
they do what the model needs, and float32 in torch otherwise. "int8" is the kernels with coarser activations.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import attrs
import torch

from gpu.agreed_pool import agreed_pool_size
from gpu.attention_backend import GatherBackend
from gpu.config import ModelConfig
from gpu.groups.groups import Groups
from gpu.kernels.build import find_library
from gpu.kernels.laid_out import LaidOutMatrix, laid_out_path, map_laid_out, open_laid_out
from gpu.kernels.laid_out_file import files_digest, laid_out_directory
from gpu.kernels.library import KernelLibrary, open_library
from gpu.kv_dtype import kv_dtype
from gpu.kv_pool import KvPool, KvPoolSize, free_bytes, kv_pool_size
from gpu.linear_change import check_quantization, linear_change
from gpu.load_report import Report, enter
from gpu.model import Model
from gpu.models.decoder import Decoder
from gpu.models.native_decoder import Precision
from gpu.models.transformers_checkpoint import load_transformers
from gpu.models.transformers_model import TransformersModel
from gpu.native_model import KV_DTYPE, NativeModel
from gpu.native_plan import NativePlan, why_not
from gpu.shard import Shard
from gpu.shared_loader import shared_loader
from gpu.shared_weights import WeightsOffer
from gpu.torch_loras import TorchLoras
from gpu.torch_model import TorchModel
from gpu.weight_files import GGUF_INDEX
from gpu.weights import WeightLoader, WeightSource, open_weights
from protocol.errors import CheckpointError, StartError, UnknownVariantError
from protocol.phases import ALLOCATE, COMPILE, LAY_OUT, LOAD, WAIT, WARM_UP
from protocol.spec import EngineSpec, SharedWeights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INT8 = "int8"
"""Activations rounded to int8 where they meet quantised weights: a third faster at many sequences, less exact."""

logger = logging.getLogger("trillm.load")


def load_model(
    spec: EngineSpec, report: Report, offer: WeightsOffer | None = None, groups: Groups | None = None
) -> tuple[Model, KvPoolSize]:
    """Load the checkpoint that `spec` names, or map what the weights actor offers of it; that is waited for only if it
    is needed. Of a model over ranks, the part of this rank of `groups`: all of them call it, and meet at its end.
    Raises CheckpointError if it cannot be served, StartError if the device or the data type is not to be had here, or
    the model cannot be cut so."""
    if groups is None:
        assert spec.parallel.world == 1, "a model over ranks without groups"
        groups = Groups(parallel=spec.parallel)
    assert groups.parallel == spec.parallel, "groups for another spec"
    torch.set_num_threads(1)  # copying is bound by memory, and threads that wait for each other slow it down
    device = pick_device(spec.device)
    if spec.quantization is not None:
        check_quantization(spec.quantization, torch.bfloat16, device)
    try:
        config = ModelConfig.read(Path(spec.checkpoint)).for_length(spec.max_model_len)
    except UnknownVariantError as error:
        enter(report, LOAD)
        return _with_transformers(spec, error, device)
    shard = Shard.of(config, groups)
    source = open_weights(Path(spec.checkpoint))
    if spec.dtype in ("auto", INT8) and device.type == "cpu":
        if (native := _native(spec, config, source, report, offer)) is not None:
            return native
        if spec.dtype == INT8:
            raise CheckpointError(f"--dtype {INT8} is only for models that the CPU kernels compute, as logged above")
    dtype = pick_dtype(spec.dtype, config.dtype, device)
    change = linear_change(spec, dtype, device)
    ranks = spec.parallel.world
    loader: WeightLoader | None = None
    if offer is not None and device.type == "cpu":
        enter(report, WAIT)
        loader = shared_loader(offer.wait(spec.checkpoint), source, dtype, report, ranks)
    loader = loader or WeightLoader(source, dtype, device, report, ranks)
    enter(report, LOAD)
    decoder = Decoder.load(config, loader, change, groups)
    enter(report, ALLOCATE)
    weights_bytes = loader.num_bytes - (0 if change is None else change.saved_bytes)
    kept_in = kv_dtype(spec.kv_cache_dtype, dtype)
    size = agreed_pool_size(spec, shard.held, kept_in, device, groups.control)
    if device.type == "cuda":
        from gpu.cuda_model import cuda_model, cuda_parts  # imports what a CPU does not need

        enter(report, WARM_UP)
        model = cuda_model(spec, config, decoder, size, weights_bytes, cuda_parts(), shard)
    else:
        loras = TorchLoras(decoder, config, shard) if spec.max_loras else None
        backend = GatherBackend(shard.held.windows, size.block_size, dtype, device)
        pool = KvPool(size, shard.held, kept_in, device, dtype)
        model = TorchModel(decoder, config, pool, weights_bytes, backend, loras=loras)
    torch.set_num_threads(compute_threads(spec.threads, spec.ranks_per_host * spec.num_engines))
    return model, size


def _with_transformers(
    spec: EngineSpec, unknown: UnknownVariantError, device: torch.device
) -> tuple[TransformersModel, KvPoolSize]:
    """What our decoder does not compute. Only for checkpoints in safetensors."""
    if (Path(spec.checkpoint) / GGUF_INDEX).exists():
        raise unknown
    not_done = {
        "--batch-invariant": spec.batch_invariant,
        "--quantization": spec.quantization is not None,
        "--tensor-parallel-size": spec.parallel.tensor > 1,
        "--pipeline-parallel-size": spec.parallel.pipeline > 1,
        "--enable-lora": spec.max_loras > 0,
    }
    for flag, is_asked in not_done.items():
        if is_asked:
            raise StartError(f"{flag} is not for models that are computed with transformers' code: {unknown.message}")
    logger.info("computing with transformers' code: %s", unknown.message)
    torch.set_num_threads(compute_threads(spec.threads, spec.num_engines))
    model = load_transformers(
        Path(spec.checkpoint), unknown.message, lambda saved: pick_dtype(spec.dtype, saved, device), device
    )
    dtype = DTYPES[model.dtype]
    kept_in = kv_dtype(spec.kv_cache_dtype, dtype)
    size = kv_pool_size(spec, model.shape, kept_in, *free_bytes(device, spec.num_engines))
    model.use_pool(KvPool(size, model.shape, kept_in, device, dtype))
    return model, size


@attrs.frozen(eq=False)
class NativeChoice:
    """How the kernels compute a model: what is laid out, for which library, and where that is kept, if anywhere."""

    plan: NativePlan
    library: KernelLibrary
    path: Path | None


def choose_native(spec: EngineSpec, config: ModelConfig, source: WeightSource) -> NativeChoice | None:
    """None, with a line in the log, if this model is not for the kernels."""
    if spec.parallel.world > 1:
        logger.info("computing with torch in float32: the CPU kernels compute a model in one process only")
        return None
    reason = why_not(config, spec.block_size)
    plan = None if reason else NativePlan(config, source)
    if plan is None or (reason := plan.why_not()):
        logger.info("computing with torch in float32: %s", reason)
        return None
    library = open_library(None if spec.cache_directory is None else Path(spec.cache_directory))
    if library is None:
        return None
    directory = laid_out_directory(Path(spec.checkpoint), spec.cache_directory)
    return NativeChoice(
        plan, library, None if directory is None else laid_out_path(directory, source.files, library.lanes)
    )


def _native(
    spec: EngineSpec, config: ModelConfig, source: WeightSource, report: Report, offer: WeightsOffer | None
) -> tuple[NativeModel, KvPoolSize] | None:
    """torch, which then only samples, is left with one thread."""
    if offer is not None and not _is_built(spec):
        enter(report, WAIT)
        offer.wait(spec.checkpoint)  # for the library: two compilers at once would take twice as long
    enter(report, COMPILE)
    choice = choose_native(spec, config, source)
    if choice is None:
        return None
    if spec.kv_cache_dtype != "auto":
        raise StartError(
            f"--kv-cache-dtype {spec.kv_cache_dtype} is not for the CPU kernels, whose cache is float16; "
            "--dtype float32 computes with torch, which has it"
        )
    enter(report, LOAD)
    plan, library, path = choice.plan, choice.library, choice.path
    laid_out = None if path is None else map_laid_out(path, plan.stacks, library.lanes)
    if laid_out is None and offer is not None:
        enter(report, WAIT)
        laid_out = _map_shared(offer.wait(spec.checkpoint), choice, source)
    if laid_out is None:
        enter(report, LAY_OUT)
        laid_out = open_laid_out(path, plan.stacks, source, library.lanes)
    enter(report, LOAD)
    weights = plan.weights(laid_out, WeightLoader(source, torch.float32, torch.device("cpu"), report))
    enter(report, ALLOCATE)
    size = kv_pool_size(spec, config, KV_DTYPE, *free_bytes(torch.device("cpu"), spec.num_engines))
    pool = KvPool(size, config, KV_DTYPE, torch.device("cpu"))
    threads = compute_threads(spec.threads, spec.num_engines)
    precision = Precision.COARSE if spec.dtype == INT8 else Precision.FINE
    kind, loras = plan.kind.lower(), (spec.max_loras, spec.max_lora_rank)
    return NativeModel(library, threads, config, weights, kind, pool, precision, *loras), size


def _map_shared(
    share: SharedWeights | None, choice: NativeChoice, source: WeightSource
) -> dict[str, LaidOutMatrix] | None:
    """None if this is not what the checkpoint is now, with a line in the log."""
    if share is None or share.laid_out is None:
        return None
    if share.files != files_digest(source.files):
        logger.warning("this engine loads by itself, since the checkpoint has changed since the weights were shared")
        return None
    return map_laid_out(Path(share.laid_out.path), choice.plan.stacks, choice.library.lanes)


def _is_built(spec: EngineSpec) -> bool:
    return spec.cache_directory is not None and find_library(Path(spec.cache_directory)) is not None


def pick_device(name: str) -> torch.device:
    """Raises StartError for a device that is unknown or not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise StartError(f"--device {name!r} is none of auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise StartError("--device cuda: torch sees no CUDA device here; leave it out to compute on the CPU")
    return torch.device(name)


def pick_dtype(name: str, saved: str | None, device: torch.device) -> torch.dtype:
    """ "auto" is float32 on a CPU, whose half-precision arithmetic is slow in torch, and the checkpoint's own type on a
    GPU."""
    whose = f"--dtype {name!r}"
    if name == "auto":
        whose = f"the checkpoint's data type {saved!r}"
        name = "float32" if device.type == "cpu" else saved or "bfloat16"
    if name not in DTYPES:
        raise CheckpointError(f"{whose} is none of {', '.join(DTYPES)}: give --dtype one of these")
    return DTYPES[name]


def compute_threads(asked: int | None, processes: int = 1) -> int:
    """Threads of one operation: what was asked for, else all cores but the one that serves, if there are enough, or
    the share of one of so many processes that compute."""
    cores = len(os.sched_getaffinity(0))
    return asked or max(1, (cores - 1 if cores > 2 else cores) // processes)
