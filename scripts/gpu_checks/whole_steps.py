"""Steps through the model as it is served, held to each other: with graphs and without, alone and in company, sampled.

Used beside scripts/gpu_checks/numerics, which compares with float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from gpu.compiled_parts import TOLERANCE, compile_parts, tried
from gpu.cuda_model import DeviceParts, cuda_model
from gpu.kv_dtype import is_fp8, rounded
from gpu.kv_pool import KvPoolSize, kv_block_bytes
from gpu.linear_change import LinearChange
from gpu.lora_checkpoint import AdapterWeights, LowRank
from gpu.models.decoder import Decoder
from gpu.sampler import Sampler, SamplingRow
from gpu.sequence_slot import SequenceSlot
from gpu.started_step import FinishedStep
from gpu.torch_model import TorchModel
from gpu.torch_runner import TorchRunner
from gpu.weights import WeightLoader
from protocol.errors import StartError
from protocol.ids import EngineIndex, Epoch, RequestId, Slot
from protocol.lora import LoraId
from protocol.sampling import SamplingParams
from protocol.spec import EngineFacts, EngineSpec
from protocol.step import PENDING, NewSequence, Row, StepPlan
from scripts.gpu_checks.numerics import CPU, LIMITS, Finding, relative_difference
from scripts.gpu_checks.random_model import BLOCK_SIZE, RandomWeights, Shape, decode_rows

BATCH, CONTEXT = 5, 40
BLOCKS_EACH = CONTEXT // BLOCK_SIZE + 1
FP8_CACHE_LIMIT = 0.15
"""What three bits of mantissa in keys and values may do to two layers of random weights."""
AHEAD_STEPS = 6
RANK = 16
"""Of adapters."""
DRAWS = 64
OTHER_DRAWS = 0.02
"""Part of the tokens that a last bit may decide otherwise."""


def check_whole_steps(shape: Shape, dtype: torch.dtype, device: torch.device, parts: DeviceParts) -> Iterator[Finding]:
    rows = decode_rows(BATCH, CONTEXT)
    recorded, launched = (_model(shape, dtype, device, parts, enforce_eager=eager) for eager in (False, True))
    if not recorded.is_recorded(rows):
        yield Finding("graph and no graph", None, LIMITS[dtype], "no graphs, as logged above")
    else:
        for count in (BATCH, BATCH - 2):  # the second one into what the first has recorded
            found, expected = (_hidden(model, count) for model in (recorded, launched))
            name = f"graph and no graph, {count} rows"
            yield Finding(name, relative_difference(found, expected.cpu().double()), LIMITS[dtype])
    yield _invariance(shape, dtype, device, parts)
    yield _fp8_cache(shape, dtype, device, parts, launched)
    yield _adapters(shape, dtype, device, parts)
    yield _compiled(shape, dtype, device, parts)
    yield from _sampler(shape, device)
    yield _ahead(shape, recorded)


def _model(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    parts: DeviceParts,
    enforce_eager: bool = False,
    batch_invariant: bool = False,
    kv_cache_dtype: str = "auto",
    max_loras: int = 0,
) -> TorchModel:
    """With random numbers in the cache, the same each time."""
    config = shape.config()
    num_blocks = BATCH * BLOCKS_EACH
    size = KvPoolSize(num_blocks, BLOCK_SIZE, 64, num_blocks * kv_block_bytes(config, BLOCK_SIZE, dtype))
    change = LinearChange(fp8=False, fixed_rows=True) if batch_invariant else None
    loader = WeightLoader(RandomWeights(device), dtype, device, lambda _: None)
    decoder = Decoder.load(config, loader, change)
    spec = EngineSpec(
        EngineIndex(0),
        Epoch(0),
        "",
        {},
        "",
        max_num_seqs=BATCH,
        enforce_eager=enforce_eager,
        batch_invariant=batch_invariant,
        kv_cache_dtype=kv_cache_dtype,
        max_loras=max_loras,
    )
    model = cuda_model(spec, config, decoder, size, loader.num_bytes, parts)
    assert model.pool is not None, "closed at birth"
    for seed, tensor in enumerate((model.pool.keys, model.pool.values)):
        drawn = torch.randn(tensor[:, :num_blocks].shape, generator=torch.Generator().manual_seed(seed))
        if is_fp8(tensor.dtype):
            drawn = rounded(drawn, tensor.dtype)
        tensor[:, :num_blocks].copy_(drawn)
    return model


def _hidden(model: TorchModel, count: int, lora_ids: Sequence[LoraId] = ()) -> torch.Tensor:
    """[count, hidden] in the order of the rows."""
    computed = model.compute(decode_rows(BATCH, CONTEXT)[:count], lora_ids)
    return computed.hidden[computed.first_token].clone()


def _invariance(shape: Shape, dtype: torch.dtype, device: torch.device, parts: DeviceParts) -> Finding:
    """The first row's logits among others and alone, to the last bit."""
    name = "batch-invariant logits"
    try:
        model = _model(shape, dtype, device, parts, batch_invariant=True)
    except StartError as error:
        return Finding(name, None, 0.0, error.message)
    together, alone = (model.logits(_hidden(model, count))[:1].clone() for count in (BATCH, 1))
    return Finding(name, relative_difference(together, alone.cpu().double()), 0.0)


def _fp8_cache(
    shape: Shape, dtype: torch.dtype, device: torch.device, parts: DeviceParts, exact: TorchModel
) -> Finding:
    """Hidden states over the same cache, rounded to 8 bits."""
    model = _model(shape, dtype, device, parts, enforce_eager=True, kv_cache_dtype="fp8")
    found, expected = _hidden(model, BATCH), _hidden(exact, BATCH)
    return Finding("fp8 cache", relative_difference(found, expected.cpu().double()), FP8_CACHE_LIMIT)


def _adapters(shape: Shape, dtype: torch.dtype, device: torch.device, parts: DeviceParts) -> Finding:
    """Hidden states of a step whose rows have two adapters and none, and of one for each of the three."""
    model = _model(shape, dtype, device, parts, max_loras=2)
    lora_ids = [LoraId(0), LoraId(1), LoraId(2)]
    for lora_id in lora_ids[1:]:
        random = np.random.default_rng(lora_id)
        low_ranks = {
            name: LowRank(
                random.normal(size=(RANK, module.columns), scale=0.02).astype(np.float32),
                random.normal(size=(module.rows, RANK), scale=0.2).astype(np.float32),
            )
            for name, module in model.lora_modules.items()
        }
        model.add_lora(lora_id, AdapterWeights(low_ranks))
    mixed = [lora_ids[i % 3] for i in range(BATCH)]
    alone = {lora_id: _hidden(model, BATCH, [lora_id] * BATCH) for lora_id in lora_ids}
    expected = torch.stack([alone[lora_id][i] for i, lora_id in enumerate(mixed)])
    change = relative_difference(alone[lora_ids[1]], alone[lora_ids[0]].cpu().double())
    if change < 10 * LIMITS[dtype]:
        return Finding("adapters together and alone", None, LIMITS[dtype], f"they change nothing: {change:.3g}")
    found = _hidden(model, BATCH, mixed)
    return Finding("adapters together and alone", relative_difference(found, expected.cpu().double()), LIMITS[dtype])


def _compiled(shape: Shape, dtype: torch.dtype, device: torch.device, parts: DeviceParts) -> Finding:
    """The model with compiled parts and without."""
    name, limit = "compiled and plain parts", TOLERANCE[dtype]
    config = shape.config()
    decoder = Decoder.load(config, WeightLoader(RandomWeights(device), dtype, device, lambda _: None))
    expected = tried(decoder, config, BLOCK_SIZE)
    if parts.compiler is None:
        return Finding(name, None, limit, "there is no compiler")
    if (reason := compile_parts(decoder, config, BLOCK_SIZE, parts.compiler)) is not None:
        return Finding(name, None, limit, reason)
    return Finding(name, relative_difference(tried(decoder, config, BLOCK_SIZE), expected.cpu().double()), limit)


def _sampler(shape: Shape, device: torch.device) -> Iterator[Finding]:
    """The part of tokens that are drawn otherwise than on the CPU, from the same logits."""
    logits = torch.randn(DRAWS, shape.vocab, generator=torch.Generator().manual_seed(6)) * 3
    truncated = SamplingParams(max_tokens=1, seed=7, temperature=0.8, top_p=0.9, top_k=50)
    penalised = SamplingParams(
        max_tokens=9,
        seed=7,
        top_p=0.9,
        min_p=0.01,
        frequency_penalty=0.5,
        repetition_penalty=1.2,
        logit_bias={3: 4.0},
        bad_words_token_ids=[[9]],
        min_tokens=3,
        stop_token_ids=[5],
    )
    for name, params in (("sampled tokens", truncated), ("sampled tokens, penalised", penalised)):
        ours, theirs = (_drawn(logits, params, where) for where in (device, CPU))
        different = sum(one != other for one, other in zip(ours, theirs, strict=True))
        yield Finding(name, different / DRAWS, OTHER_DRAWS)


def _drawn(logits: torch.Tensor, params: SamplingParams, device: torch.device) -> list[int]:
    rows = []
    for index in range(DRAWS):
        new = NewSequence(Slot(index), RequestId("check"), [1, index], [2], params)
        rows.append(SamplingRow(SequenceSlot(new, logits.shape[1], device), 3 + index))
    return [choice.token_id for choice in Sampler(device).choose(logits.to(device, copy=True), rows).choices()]


def _ahead(shape: Shape, model: TorchModel) -> Finding:
    """The part of tokens that are other ones if steps are started before the host knows what the last one sampled."""

    def tokens(ahead: bool) -> list[int]:
        facts = EngineFacts(64, BATCH * BLOCKS_EACH, BLOCK_SIZE, shape.vocab, "", "", 0, 0)
        runner = TorchRunner(model, facts)
        plans = _plans_ahead()
        started = [runner.start(plan) for plan in plans] if ahead else [FinishedStep(runner.step(p)) for p in plans]
        return [one.token_id for step in started for one in step.result().sampled]

    different = sum(ours != theirs for ours, theirs in zip(tokens(True), tokens(False), strict=True))
    return Finding("steps started ahead", different / (BATCH * AHEAD_STEPS), 0.0)


def _plans_ahead() -> list[StepPlan]:
    params = SamplingParams(max_tokens=AHEAD_STEPS, seed=3, temperature=0.8, frequency_penalty=0.3)
    tables = [list(range(i * BLOCKS_EACH, (i + 1) * BLOCKS_EACH)) for i in range(BATCH)]
    plans = []
    for step in range(AHEAD_STEPS):
        new = [NewSequence(Slot(i), RequestId("check"), [i + 1], [], params) for i in range(BATCH)] if step == 0 else []
        rows = [Row(Slot(i), step, [PENDING if step else i + 1], tables[i], True) for i in range(BATCH)]
        plans.append(StepPlan(step, [], new, rows))
    return plans
