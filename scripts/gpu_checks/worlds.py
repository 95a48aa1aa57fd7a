"""Groups of ranks, NCCL's on GPUs and gloo's on CPUs, and a model over them, held to what they should give.

As many processes as there are GPUs, and a group of one, whose calls go through the backend all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from app.settings import default_cache_directory
from protocol.ids import EngineIndex, Epoch
from protocol.parallel import ParallelSpec, why_not
from protocol.spec import EngineSpec
from scripts.gpu_checks.numerics import LIMITS, Finding
from scripts.gpu_checks.random_model import Shape
from scripts.gpu_checks.task import Conform, Follow, Lead, ProcessFailedError, Task, answers_of, open_tasks

BLOCKS = 32


def check_worlds(
    checkpoint: Path, layouts: Sequence[ParallelSpec], dtype: torch.dtype, device: torch.device, directory: Path
) -> Iterator[Finding]:
    """Of the model at `checkpoint`. `directory` is for what the processes tell each other."""
    for number, parallel in enumerate([ParallelSpec(), *layouts]):
        yield groups_of(spec_of(checkpoint, device, dtype, parallel, directory / f"groups-{number}"))
    if not layouts:
        yield Finding("model over ranks", None, 2 * LIMITS[dtype], "there is one device")
    for number, parallel in enumerate(layouts):
        spec = spec_of(checkpoint, device, dtype, parallel, directory / f"model-{number}")
        yield model_over(spec, 2 * LIMITS[dtype])


def layouts_of(shape: Shape, ranks: int) -> list[ParallelSpec]:
    """As many ranks as there are and as the heads can be cut for, along each side, and along both."""
    layouts = [ParallelSpec(tensor=size) for size in range(ranks, 1, -1) if _fits(ParallelSpec(size), shape)][:1]
    if ranks >= 2:
        layouts.append(ParallelSpec(pipeline=2))
    if ranks >= 4:
        layouts.append(ParallelSpec(tensor=2, pipeline=2))
    return [parallel for parallel in layouts if _fits(parallel, shape)]


def _fits(parallel: ParallelSpec, shape: Shape) -> bool:
    return why_not(parallel, shape.heads, shape.kv_heads, shape.layers, 0) is None


def spec_of(
    checkpoint: Path, device: torch.device, dtype: torch.dtype, parallel: ParallelSpec, directory: Path
) -> EngineSpec:
    directory.mkdir()
    return EngineSpec(
        EngineIndex(0),
        Epoch(0),
        "",
        {},
        str(checkpoint),
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        max_num_seqs=4,
        num_gpu_blocks_override=BLOCKS,
        max_model_len=256,
        threads=1,
        cache_directory=str(default_cache_directory()),
        parallel=parallel,
        rendezvous=f"file://{directory}/meeting",
    )


def _named(parallel: ParallelSpec) -> str:
    return f"tensor {parallel.tensor} × pipeline {parallel.pipeline}"


def groups_of(spec: EngineSpec) -> Finding:
    """The part of the groups in which not all ranks have the same."""
    name = f"groups, {_named(spec.parallel)}"
    tasks: list[Task] = [Conform(spec, rank) for rank in range(spec.parallel.world)]
    try:
        with open_tasks(tasks, _directory(spec)) as processes:
            answers = answers_of(processes, processes)
    except ProcessFailedError as error:
        return Finding(name, float("nan"), 0.0, str(error))
    groups = answers[0].digests
    different = sum(answer.digests[group] != groups[group] for answer in answers for group in groups)
    return Finding(name, float(different), 0.0, f"a sum in {max(one.seconds for one in answers) * 1e6:.0f} µs")


def model_over(spec: EngineSpec, limit: float) -> Finding:
    """Logits over ranks, and alone."""
    name = f"model, {_named(spec.parallel)}"
    followers: list[Task] = [Follow(spec, rank) for rank in range(1, spec.parallel.world)]
    try:
        with open_tasks([Lead(spec), *followers], _directory(spec)) as processes:
            (answer,) = answers_of(processes[:1], processes)
    except ProcessFailedError as error:
        return Finding(name, float("nan"), limit, str(error))
    return Finding(name, answer.difference, limit, f"a decode step in {answer.seconds * 1e3:.2f} ms")


def _directory(spec: EngineSpec) -> Path:
    return Path(spec.rendezvous.removeprefix("file://")).parent
