"""Steps through the model as it is served, held to each other: with graphs and without, alone and in company, sampled.

Used beside scripts/gpu_checks/numerics, which compares with float64.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gpu.cuda_model import DeviceParts, cuda_model
from gpu.kv_pool import KvPoolSize, kv_block_bytes
from gpu.linear_change import LinearChange
from gpu.models.decoder import Decoder
from gpu.sampler import Sampler, SamplingRow
from gpu.sequence_slot import SequenceSlot
from gpu.torch_model import TorchModel
from gpu.weights import WeightLoader
from protocol.errors import StartError
from protocol.ids import EngineIndex, Epoch, RequestId, Slot
from protocol.sampling import SamplingParams
from protocol.spec import EngineSpec
from protocol.step import NewSequence
from scripts.gpu_checks.numerics import CPU, LIMITS, Finding, relative_difference
from scripts.gpu_checks.random_model import BLOCK_SIZE, RandomWeights, Shape, decode_rows

BATCH, CONTEXT = 5, 40
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
    yield _sampler(shape, device)


def _model(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    parts: DeviceParts,
    enforce_eager: bool = False,
    batch_invariant: bool = False,
) -> TorchModel:
    """With random numbers in the cache, the same each time."""
    config = shape.config()
    num_blocks = BATCH * (CONTEXT // BLOCK_SIZE + 1)
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
    )
    model = cuda_model(spec, config, decoder, size, loader.num_bytes, parts)
    assert model.pool is not None, "closed at birth"
    for seed, tensor in enumerate((model.pool.keys, model.pool.values)):
        drawn = torch.randn(tensor[:, :num_blocks].shape, generator=torch.Generator().manual_seed(seed))
        tensor[:, :num_blocks].copy_(drawn)
    return model


def _hidden(model: TorchModel, count: int) -> torch.Tensor:
    """[count, hidden] in the order of the rows."""
    computed = model.compute(decode_rows(BATCH, CONTEXT)[:count])
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


def _sampler(shape: Shape, device: torch.device) -> Finding:
    """The part of tokens that are drawn otherwise than on the CPU, from the same logits."""
    logits = torch.randn(DRAWS, shape.vocab, generator=torch.Generator().manual_seed(6)) * 3
    params = SamplingParams(max_tokens=1, seed=7, temperature=0.8, top_p=0.9, top_k=50)

    def drawn(where: torch.device) -> list[int]:
        new = NewSequence(Slot(0), RequestId("check"), [1], [], params)
        slot = SequenceSlot(new, shape.vocab, where)
        rows = [SamplingRow(slot, position) for position in range(DRAWS)]
        return [choice.token_id for choice in Sampler(where).choose(logits.to(where, copy=True), rows).choices()]

    different = sum(ours != theirs for ours, theirs in zip(drawn(device), drawn(CPU), strict=True))
    return Finding("sampled tokens", different / DRAWS, OTHER_DRAWS)
