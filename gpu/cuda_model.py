"""The decoder on a GPU: which attention works there, what is compiled, and whether decode steps are recorded as graphs.

All are tried when the model is loaded, and what fails is left out with a line in the log. Used by gpu/load_model and
scripts/gpu_checks. Never run on a GPU so far; the tests put stand-ins for the two things that need one.
"""

from __future__ import annotations

import logging
import time

import attrs
import torch
from torch.nn.attention import activate_flash_attention_impl
from torch.nn.attention.varlen import varlen_attn

from gpu.attention_choice import AttentionChoice
from gpu.batch import StepBatch
from gpu.compiled_parts import INDUCTOR, Compiler, compile_parts, use_plain_parts
from gpu.config import ModelConfig
from gpu.flashinfer_attention import FlashInfer
from gpu.flashinfer_package import open_flashinfer
from gpu.graph_plan import GraphPlan
from gpu.graphs import Capture, CudaCapture, DecodeGraphs
from gpu.kv_dtype import kv_dtype
from gpu.kv_pool import KvPool, KvPoolSize
from gpu.last_tokens import LastTokens
from gpu.models.decoder import Decoder
from gpu.shard import Shard
from gpu.torch_loras import TorchLoras
from gpu.torch_model import TorchModel
from gpu.varlen_attention import KvAccess, VarlenBackend, VarlenFunction
from protocol.spec import EngineSpec

GATHERED_TOKENS = 65536
"""Most keys that a graph copies together per layer, where attention cannot read them out of the pool."""
FLASH_ATTENTION = {9: "FA3", 10: "FA4"}
"""By the major number of the compute capability: torch's names of what reads the pool by block tables there."""

logger = logging.getLogger("trillm.load")


@attrs.frozen
class DeviceParts:
    """What only a GPU has."""

    varlen: VarlenFunction
    capture: Capture
    compiler: Compiler | None = None
    """For what is computed between linears and attention; None leaves that to torch's own operators."""
    flashinfer: FlashInfer | None = None


def cuda_parts() -> DeviceParts:
    """torch's own, with FlashAttention 3 or 4 where it is installed and made for the card."""
    name = FLASH_ATTENTION.get(torch.cuda.get_device_capability()[0])
    if name is not None:
        try:
            activate_flash_attention_impl(name)
        except (ImportError, RuntimeError, ValueError) as error:
            logger.info("attention without %s: %s", name, str(error).partition("\n")[0])
    return DeviceParts(varlen_attn, CudaCapture(), INDUCTOR, open_flashinfer())


def cuda_model(
    spec: EngineSpec,
    config: ModelConfig,
    decoder: Decoder,
    size: KvPoolSize,
    weights_bytes: int,
    parts: DeviceParts,
    shard: Shard | None = None,
) -> TorchModel:
    """A model with a pool of `size`. Of one over ranks it is the part that `shard` says, launched operator by operator:
    whether something is compiled or recorded would have to be the same on all.

    Raises StartError if the spec asks for what this device does not do."""
    dtype, device = decoder.embedding.dtype, decoder.embedding.device
    kept_in = kv_dtype(spec.kv_cache_dtype, dtype)
    shard = shard or Shard(config)
    held = shard.held
    backend = AttentionChoice(spec, held, dtype, device, size.max_model_len, parts.varlen, parts.flashinfer).backend()
    # A later token is known where it is sampled: the other ranks are told.
    last_tokens = LastTokens(spec.max_num_seqs, device) if spec.parallel.world == 1 else None
    loras = TorchLoras(decoder, config, shard) if spec.max_loras else None
    _compile(spec, config, decoder, parts.compiler)
    reason = _why_no_graphs(spec, config)
    if not isinstance(backend, VarlenBackend) or reason is not None or last_tokens is None:
        logger.info("attention: %s; no graphs", backend.name)
        pool = KvPool(size, held, kept_in, device, dtype)
        return TorchModel(decoder, config, pool, weights_bytes, backend, last_tokens=last_tokens, loras=loras)
    # One block more than the scheduler knows of, for the rows that fill up a graph.
    pool = KvPool(attrs.evolve(size, num_blocks=size.num_blocks + 1), config, kept_in, device, dtype)
    most = None if backend.access is KvAccess.PAGED else GATHERED_TOKENS // size.block_size
    plan = GraphPlan(spec.max_num_seqs, size.max_model_len, size.block_size, size.num_blocks, most)

    def run(batch: StepBatch) -> torch.Tensor:
        return decoder.hidden_states(last_tokens.resolved(batch), pool)

    graphs: DecodeGraphs | None = DecodeGraphs(plan, parts.capture, run, backend, size.block_size, device)
    assert graphs is not None
    if (reason := graphs.why_not()) is not None:
        logger.warning("decode steps are not recorded as graphs: %s", reason)
        graphs = None
    logger.info("attention: %s; %s", backend.name, "no graphs" if graphs is None else "graphs")
    return TorchModel(decoder, config, pool, weights_bytes, backend, graphs, last_tokens, loras)


def _compile(spec: EngineSpec, config: ModelConfig, decoder: Decoder, compiler: Compiler | None) -> None:
    """Before graphs are recorded: these then hold what was compiled."""
    use_plain_parts(decoder)
    if compiler is None or spec.enforce_eager or spec.batch_invariant or spec.parallel.world > 1:
        return
    began = time.monotonic()
    if (reason := compile_parts(decoder, config, spec.block_size, compiler)) is None:
        logger.info("norms, gates and rotations compiled in %.1f s", time.monotonic() - began)
    else:
        logger.warning("norms, gates and rotations are not compiled: %s", reason)


def _why_no_graphs(spec: EngineSpec, config: ModelConfig) -> str | None:
    if spec.enforce_eager:
        return "--enforce-eager"
    if spec.parallel.world > 1:
        return "ranks exchange tensors within a step"
    if config.experts is not None:
        return "which experts are run is decided on the host"
    return None
