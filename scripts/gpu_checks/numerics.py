"""How far the device's arithmetic is from float64 on the CPU: linears, norm, rotation, attention, a model, the sampler.

The reference computes with the very numbers that the device holds, so what is seen is the device's rounding alone.
"""

from __future__ import annotations

import attrs
import torch
import torch.nn.functional as F

from gpu.attention_backend import AttentionBackend, GatherBackend
from gpu.batch import StepBatch
from gpu.cuda_model import DeviceParts
from gpu.flashinfer_attention import FlashInferBackend, FlashInferScores
from gpu.kv_pool import KvPool, KvPoolSize
from gpu.layers.fp8 import Fp8Linear
from gpu.layers.linear import make_linear
from gpu.layers.norm import RMSNorm
from gpu.layers.rope import RotaryEmbedding, rotate
from gpu.models.decoder import Decoder
from gpu.noise import gumbel_noise, noise_key
from gpu.varlen_attention import KvAccess, VarlenBackend
from gpu.varlen_probe import REFUSALS, AttentionShape, why_not
from gpu.weights import WeightLoader
from protocol.ids import Slot
from protocol.step import Row
from scripts.gpu_checks.random_model import BLOCK_SIZE, RandomWeights, Shape

CPU = torch.device("cpu")
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.004}
"""Of the difference's norm relative to the reference's."""
FP8_LIMIT = 0.06
TOKENS = 96


@attrs.frozen
class Finding:
    """One thing that was held to its reference."""

    name: str
    difference: float | None
    """Relative, of norms; None if it does not compute here."""
    limit: float
    remark: str = ""

    @property
    def is_right(self) -> bool:
        return self.difference is not None and self.difference <= self.limit


def check_numerics(shape: Shape, dtype: torch.dtype, device: torch.device, parts: DeviceParts) -> list[Finding]:
    limit = LIMITS[dtype]
    findings = [*_layers(shape, dtype, device, limit), *_attention(shape, dtype, device, parts)]
    return [*findings, _model(shape, dtype, device, limit), _noise(shape, device)]


def relative_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((found.cpu().double() - expected).norm() / expected.norm()).item())


def _random(*sizes: int, dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def _layers(shape: Shape, dtype: torch.dtype, device: torch.device, limit: float) -> list[Finding]:
    x = _random(TOKENS, shape.hidden, dtype=dtype, device=device, seed=0)
    weight = _random(shape.intermediate, shape.hidden, dtype=dtype, device=device, seed=1)
    exact = x.cpu().double() @ weight.cpu().double().T
    findings = [Finding("linear", relative_difference(make_linear(weight)(x), exact), limit)]
    if dtype == torch.bfloat16:
        try:
            findings.append(Finding("linear, fp8", relative_difference(Fp8Linear(weight, None)(x), exact), FP8_LIMIT))
        except RuntimeError as error:
            findings.append(Finding("linear, fp8", None, FP8_LIMIT, str(error).partition("\n")[0]))
    norm_weight = _random(shape.hidden, dtype=dtype, device=device, seed=2)
    exact = F.rms_norm(x.cpu().double(), (shape.hidden,), norm_weight.cpu().double(), 1e-5)
    findings.append(Finding("norm", relative_difference(RMSNorm(norm_weight, 1e-5)(x), exact), limit))
    config = shape.config()
    heads = _random(TOKENS, shape.heads, config.head_dim, dtype=dtype, device=device, seed=3)
    positions = torch.arange(TOKENS)
    rope = config.rope_of(0)
    cos, sin = RotaryEmbedding(rope, config.head_dim, torch.float64, CPU).at(positions)
    exact = rotate(heads.cpu().double(), cos, sin)
    rotation = RotaryEmbedding(rope, config.head_dim, dtype, device).at(positions.to(device))
    return [*findings, Finding("rotation", relative_difference(rotate(heads, *rotation), exact), limit)]


def _attention(shape: Shape, dtype: torch.dtype, device: torch.device, parts: DeviceParts) -> list[Finding]:
    """Each backend that computes here, on a step of decode and prefill rows, with and without a window."""
    config, windows = shape.config(), (None, 20)
    limit = LIMITS[dtype]
    heads = AttentionShape(shape.heads, shape.kv_heads, config.head_dim, BLOCK_SIZE, windows)
    rows, pool, exact_pool = _mixed_step(shape, dtype, device)
    queries = _random(
        sum(len(row.token_ids) for row in rows), shape.heads, config.head_dim, dtype=dtype, device=device, seed=4
    )
    reference = GatherBackend(windows, BLOCK_SIZE, torch.float64, CPU).batch(rows)
    exact = [
        reference.attention[window].attend(queries.cpu().double(), 0, exact_pool, None, None) for window in windows
    ]

    def finding(backend: AttentionBackend) -> Finding:
        batch: StepBatch = backend.batch(rows)
        found = [batch.attention[window].attend(queries, 0, pool, None, None) for window in windows]
        return Finding(
            f"attention, {backend.name}", relative_difference(torch.cat(found), torch.cat(exact)), LIMITS[dtype]
        )

    findings = [finding(GatherBackend(windows, BLOCK_SIZE, dtype, device))]
    for access in KvAccess:
        if (reason := why_not(parts.varlen, access, heads, dtype, device)) is not None:
            findings.append(Finding(f"attention, varlen, {access}", None, LIMITS[dtype], reason))
        else:
            findings.append(finding(VarlenBackend(parts.varlen, access, windows, BLOCK_SIZE, device)))
    if parts.flashinfer is None:
        return [*findings, Finding("attention, flashinfer", None, limit, "it is not installed")]
    scores = FlashInferScores(shape.heads, shape.kv_heads, config.head_dim, None, None)
    try:
        findings.append(finding(FlashInferBackend(parts.flashinfer, scores, windows, BLOCK_SIZE, dtype, dtype, device)))
    except REFUSALS as error:
        findings.append(Finding("attention, flashinfer", None, limit, str(error).partition("\n")[0]))
    return findings


def _mixed_step(shape: Shape, dtype: torch.dtype, device: torch.device) -> tuple[list[Row], KvPool, KvPool]:
    """Rows over blocks of their own, the pool, and the same pool in float64."""
    rows, blocks = [], 0
    for index, (start, count) in enumerate([(70, 1), (15, 1), (0, 40), (33, 17), (0, 1)]):
        needed = -(-(start + count) // BLOCK_SIZE)
        rows.append(Row(Slot(index), start, [index] * count, list(range(blocks, blocks + needed)), False))
        blocks += needed
    size, config = KvPoolSize(blocks, BLOCK_SIZE, 128, 0), shape.config()
    pool, exact = KvPool(size, config, dtype, device), KvPool(size, config, torch.float64, CPU)
    for seed, (ours, theirs) in enumerate([(pool.keys, exact.keys), (pool.values, exact.values)]):
        ours.copy_(torch.randn(ours.shape, generator=torch.Generator().manual_seed(seed)))
        theirs.copy_(ours)
    return rows, pool, exact


class CopiedWeights(RandomWeights):
    """The same random weights in any precision: drawn on the CPU, rounded to the type that is tested."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(CPU)
        self._dtype = dtype

    def read(self, name: str, into: torch.Tensor) -> int:
        drawn = torch.empty(into.shape)
        super().read(name, drawn)
        into.copy_(drawn.to(self._dtype))
        return into.nbytes


def _model(shape: Shape, dtype: torch.dtype, device: torch.device, limit: float) -> Finding:
    """Logits after some layers; rounding adds up over them."""
    config = shape.config()
    rows = [Row(Slot(0), 0, list(range(40)), [0, 1, 2], False), Row(Slot(1), 0, [7], [3], True)]

    def logits(kind: torch.dtype, where: torch.device) -> torch.Tensor:
        decoder = Decoder.load(config, WeightLoader(CopiedWeights(dtype), kind, where, lambda _: None))
        batch = GatherBackend(config.windows, BLOCK_SIZE, kind, where).batch(rows)
        return decoder.logits(
            decoder.hidden_states(batch, KvPool(KvPoolSize(4, BLOCK_SIZE, 64, 0), config, kind, where))
        )

    return Finding("model", relative_difference(logits(dtype, device), logits(torch.float64, CPU).double()), 2 * limit)


def _noise(shape: Shape, device: torch.device) -> Finding:
    """The sampler's noise, which must be the same everywhere up to the last bits of two logarithms."""
    keys = [noise_key(5, position) for position in range(8)]
    found, expected = (gumbel_noise(torch.tensor(keys, device=where), shape.vocab) for where in (device, CPU))
    return Finding("sampling noise", relative_difference(found, expected.double()), 1e-6)
