"""How long decode steps take, beside what the device could do, with and without graphs, on models of real shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import torch

from gpu.cuda_model import DeviceParts, cuda_model
from gpu.kv_pool import KvPoolSize, kv_block_bytes
from gpu.linear_change import LinearChange
from gpu.models.decoder import Decoder
from gpu.torch_model import TorchModel
from gpu.weights import WeightLoader
from protocol.ids import EngineIndex, Epoch
from protocol.spec import EngineSpec
from protocol.step import Row
from scripts.gpu_checks.random_model import BLOCK_SIZE, RandomWeights, Shape, decode_rows
from scripts.gpu_checks.roofline import Roofline, seconds_of

ROOM = 0.85
"""The part of the free memory that a model may take."""


@attrs.frozen
class StepTime:
    """A decode step: all layers, logits, and the greedy choice brought back."""

    shape: str
    weights: str
    batch: int
    context: int
    graphs: bool
    seconds: float
    roofline_seconds: float


@attrs.frozen
class Skipped:
    """A shape that was not measured."""

    shape: str
    reason: str


def step_times(
    shape: Shape,
    batches: list[int],
    context: int,
    dtype: torch.dtype,
    device: torch.device,
    parts: DeviceParts,
    roofline: Roofline,
    fp8: bool = False,
) -> Iterator[StepTime | Skipped]:
    """Every batch with graphs, then every batch without, on the same weights."""
    config = shape.config()
    num_blocks = max(batches) * (context // BLOCK_SIZE + 1)
    block_bytes = kv_block_bytes(config, BLOCK_SIZE, dtype)
    size = KvPoolSize(num_blocks, BLOCK_SIZE, context + BLOCK_SIZE, num_blocks * block_bytes)
    parameters = _parameters(shape)
    needed = parameters * dtype.itemsize + size.num_bytes
    if device.type == "cuda" and needed > ROOM * torch.cuda.mem_get_info(device)[0]:
        yield Skipped(shape.name, f"{needed / 1e9:.0f} GB do not fit")
        return
    change = LinearChange(fp8=True, fixed_rows=False) if fp8 else None
    loader = WeightLoader(RandomWeights(device), dtype, device, lambda _: None)
    decoder = Decoder.load(config, loader, change)
    weights_bytes = loader.num_bytes - (0 if change is None else change.saved_bytes)
    read_bytes = weights_bytes - decoder.embedding.nbytes
    for graphs in (True, False):
        spec = EngineSpec(EngineIndex(0), Epoch(0), "", {}, "", max_num_seqs=max(batches), enforce_eager=not graphs)
        model = cuda_model(spec, config, decoder, size, weights_bytes, parts)
        for batch in batches:
            kv_bytes = batch * context * block_bytes / BLOCK_SIZE
            floor = roofline.seconds(read_bytes + kv_bytes, 2.0 * batch * (parameters - shape.vocab * shape.hidden))
            rows = decode_rows(batch, context)
            seconds = seconds_of(_step(model, rows), device)
            name = "fp8" if fp8 else str(dtype).removeprefix("torch.")
            yield StepTime(shape.name, name, batch, context, model.is_recorded(rows), seconds, floor)
        model.close()


def _step(model: TorchModel, rows: list[Row]) -> Callable[[], list[int]]:
    def step() -> list[int]:
        computed = model.compute(rows)
        chosen: list[int] = model.logits(computed.hidden).argmax(dim=1).tolist()
        return chosen

    return step


def _parameters(shape: Shape) -> int:
    """Of all matrices, embedding and head included."""
    head_dim = shape.hidden // shape.heads
    attention = shape.hidden * head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    return shape.layers * (attention + 3 * shape.hidden * shape.intermediate) + 2 * shape.vocab * shape.hidden
