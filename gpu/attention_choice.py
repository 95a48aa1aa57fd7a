"""Which attention computes on a GPU: the first of these that gives what the reference gives, tried on the spot.

Varlen attention over pages (it copies nothing, and decode steps are recorded over it), flashinfer (it copies nothing),
varlen attention over blocks that are gathered first (recorded too), and torch's own over gathered blocks, which serves
every model. Used by gpu/cuda_model.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import attrs
import torch

from gpu.attention_backend import AttentionBackend, GatherBackend
from gpu.config import ModelConfig
from gpu.flashinfer_attention import FlashInfer, FlashInferBackend, FlashInferScores
from gpu.kv_dtype import is_fp8, kv_dtype
from gpu.varlen_attention import KvAccess, VarlenBackend, VarlenFunction
from gpu.varlen_probe import PROBED_LENGTH, REFUSALS, AttentionShape, why_not, why_wrong
from protocol.errors import StartError
from protocol.spec import EngineSpec

NO_SINKS = "the model has attention sinks"

logger = logging.getLogger("trillm.load")


@attrs.frozen
class AttentionChoice:
    """What a model asks for, and what there is."""

    spec: EngineSpec
    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    max_model_len: int
    varlen: VarlenFunction
    flashinfer: FlashInfer | None

    def backend(self) -> AttentionBackend:
        """Raises StartError if --batch-invariant asks for what does not compute here."""
        reasons = []
        for name, found in self._tried():
            if not isinstance(found, str):
                return found
            logger.info("attention is not %s: %s", name, found)
            reasons.append(f"{name}: {found}")
        if self.spec.batch_invariant:
            raise StartError(
                f"--batch-invariant needs varlen attention, which does not compute here ({'; '.join(reasons)})"
            )
        return GatherBackend(self.config.windows, self.spec.block_size, self.dtype, self.device)

    @property
    def _shape(self) -> AttentionShape:
        config = self.config
        return AttentionShape(
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            self.spec.block_size,
            config.windows,
            config.attention_scale,
            config.attention_softcap,
        )

    def _tried(self) -> Iterator[tuple[str, AttentionBackend | str]]:
        """Each with its name, or why it is not taken."""
        yield "varlen, paged", self._varlen(KvAccess.PAGED)
        if self.flashinfer is not None:
            yield "flashinfer", self._flashinfer(self.flashinfer)
        yield "varlen, gathered", self._varlen(KvAccess.GATHERED)

    def _varlen(self, access: KvAccess) -> AttentionBackend | str:
        if self.config.sinks:
            return NO_SINKS
        if self.config.attention_softcap is not None:
            return "the model bounds its scores"
        if access is KvAccess.PAGED and is_fp8(kv_dtype(self.spec.kv_cache_dtype, self.dtype)):
            return f"it does not read a cache of {self.spec.kv_cache_dtype}"
        fixed = max(self.max_model_len, PROBED_LENGTH) if self.spec.batch_invariant else None
        if (reason := why_not(self.varlen, access, self._shape, self.dtype, self.device, fixed)) is not None:
            return reason
        return VarlenBackend(self.varlen, access, self.config.windows, self.spec.block_size, self.device, fixed)

    def _flashinfer(self, package: FlashInfer) -> AttentionBackend | str:
        if self.config.sinks:
            return NO_SINKS
        if self.spec.batch_invariant:
            return "it splits a sequence's keys by what else is in the batch"
        config, shape = self.config, self._shape
        scores = FlashInferScores(shape.heads, shape.kv_heads, shape.head_dim, shape.scale, shape.softcap)
        kept_in = kv_dtype(self.spec.kv_cache_dtype, self.dtype)
        try:
            backend = FlashInferBackend(
                package, scores, config.windows, self.spec.block_size, self.dtype, kept_in, self.device
            )
        except REFUSALS as error:
            return str(error).partition("\n")[0]
        return why_wrong(backend, shape, self.dtype, self.device, kept_in) or backend
