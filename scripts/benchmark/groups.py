"""What a sum over the ranks of an engine takes: through gloo, and through memory that they share.

Run as a module it is one rank. Ranks do nothing else than sum, and meet in every sum, so that what the system does with
more ranks than cores is in the figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import msgspec

from scripts.benchmark.statistics import percentile

HOME = Path(__file__).parents[2]
RANK_SECONDS = 300.0
WARM_UP = 20


class Job(msgspec.Struct, frozen=True):
    """What a rank is started with."""

    rank: int
    ranks: int
    rendezvous: str
    kernels: str
    """Of the library; without it gloo."""
    numbers: list[int]
    """Floats of a sum, one size after the other."""
    sums: int
    """Of each size."""


@attrs.frozen
class SumFigures:
    """As the first rank saw it."""

    way: str
    ranks: int
    numbers: int
    median_microseconds: float
    p99_microseconds: float
    core_share: float
    """Of one core's time, which this rank used while it summed and waited."""


def measure_sums(
    kernels: Path | None, worlds: Sequence[int], numbers: Sequence[int], sums: int
) -> Iterator[SumFigures]:
    """Each way with each number of ranks; new processes for each. Without `kernels` only gloo."""
    for ranks in worlds:
        for way, library in (("gloo", ""), ("shared memory", str(kernels or ""))):
            if way == "gloo" or library:
                for one in _measure(ranks, library, numbers, sums):
                    yield SumFigures(way, ranks, *one)


def _measure(ranks: int, kernels: str, numbers: Sequence[int], sums: int) -> list[tuple[int, float, float, float]]:
    with tempfile.TemporaryDirectory(prefix="trillm-groups-") as directory:
        jobs = [Job(rank, ranks, f"file://{directory}/ranks", kernels, list(numbers), sums) for rank in range(ranks)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "scripts.benchmark.groups", msgspec.json.encode(job).decode()],
                cwd=HOME,
                env=os.environ | {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
            )
            for job in jobs
        ]
        try:
            outputs = [process.communicate(timeout=RANK_SECONDS)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    return msgspec.json.decode(outputs[0], type=list[tuple[int, float, float, float]])


def be_rank(job: Job) -> list[tuple[int, float, float, float]]:
    """Of each size: the size, median and 99th percentile [µs], and the share of a core."""
    import torch

    from gpu.groups.open import open_groups
    from gpu.groups.rendezvous import Rendezvous
    from gpu.kernels.library import KernelLibrary
    from protocol.parallel import ParallelSpec

    torch.set_num_threads(1)
    kernels = KernelLibrary(Path(job.kernels)) if job.kernels else None
    place, cpu = Rendezvous.parse(job.rendezvous), torch.device("cpu")
    found = []
    with torch.inference_mode(), open_groups(ParallelSpec(job.ranks), job.rank, place, cpu, 60, 60, kernels) as groups:
        for size in job.numbers:
            x, times = torch.zeros(size), []
            used, begun = time.process_time(), time.perf_counter()
            for _ in range(job.sums + WARM_UP):
                before = time.perf_counter()
                groups.tensor.all_reduce(x)
                times.append((time.perf_counter() - before) * 1e6)
            share = (time.process_time() - used) / (time.perf_counter() - begun)
            found.append((size, percentile(times[WARM_UP:], 0.5), percentile(times[WARM_UP:], 0.99), share))
    return found


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(be_rank(msgspec.json.decode(sys.argv[1], type=Job))).decode())
