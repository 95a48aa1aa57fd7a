"""The command line of scripts/gpu_check."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import torch
from cyclopts import App, Parameter

from gpu.cuda_model import DeviceParts, cuda_parts
from protocol.parallel import ParallelSpec
from scripts.gpu_checks.block_copies import check_block_copies
from scripts.gpu_checks.numerics import Finding, check_numerics
from scripts.gpu_checks.random_checkpoint import write_checkpoint
from scripts.gpu_checks.random_model import LLAMA_1B, LLAMA_8B, SMALL, TINY, Shape
from scripts.gpu_checks.restarts import check_restarts
from scripts.gpu_checks.roofline import measure
from scripts.gpu_checks.shared_tensors import check_shared_tensors
from scripts.gpu_checks.steps import Skipped, StepTime, step_times
from scripts.gpu_checks.whole_steps import check_whole_steps
from scripts.gpu_checks.without_gpu import cpu_parts
from scripts.gpu_checks.worlds import check_worlds, layouts_of

app = App(
    name="scripts/gpu_check",
    help="""Hold what GPUs compute to float64 on the CPU, several to one, and decode steps to the card's own speed.

    Prints tables; --output FILE also writes them as JSON. Exits with 1 if there is no GPU, or if something differs.
    """,
)

Part = Literal["numerics", "copies", "ranks", "tensors", "restarts", "steps"]
TITLE = "compared with what it should be"
NAME_WIDTH = 42
PARTS: tuple[Part, ...] = ("numerics", "copies", "ranks", "tensors", "restarts", "steps")


@app.default
def check(
    *,
    device: Literal["cuda", "cpu"] = "cuda",
    tiny: bool = False,
    fp8: bool = False,
    ranks: int | None = None,
    only: tuple[Part, ...] = PARTS,
    output: Annotated[Path | None, Parameter()] = None,
) -> int:
    """Check one after the other.

    device: "cpu" is for trying out the script, with --tiny. fp8: also time the 8B shape with 8-bit weights. ranks: how
    many processes compute together; by default as many as there are GPUs, or 2. only: these parts; repeat it for more.
    """
    if device == "cuda" and not torch.cuda.is_available():
        print("There is nothing to check: torch sees no CUDA device.", file=sys.stderr)
        return 1
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    begun, where = time.perf_counter(), torch.device(device)
    parts = cuda_parts() if device == "cuda" else cpu_parts()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    findings: list[Finding] = []
    times: list[StepTime | Skipped] = []
    speed: dict[str, float] = {}
    shape = TINY if tiny else SMALL
    count = ranks or (torch.cuda.device_count() if device == "cuda" else 2)
    print(f"{TITLE:{NAME_WIDTH}} {'differs by':>10} {'limit':>8}", flush=True)
    with torch.inference_mode():
        for finding in found(only, shape, dtype, where, parts, count):
            findings.append(finding)
            print(finding_line(finding), flush=True)
        if "steps" in only:
            times, speed = measured(where, dtype, parts, tiny, fp8)
    print(f"\n{time.perf_counter() - begun:.0f} s in all")
    if output is not None:
        result: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "torch": torch.__version__,
            "ranks": count,
            "findings": [attrs.asdict(finding) for finding in findings],
            "roofline": speed,
            "steps": [attrs.asdict(one) for one in times],
        }
        output.write_text(json.dumps(result, indent=1) + "\n")
    wrong = [finding.name for finding in findings if finding.difference is not None and not finding.is_right]
    if wrong:
        print(f"These differ by more than they may, or failed: {', '.join(wrong)}.", file=sys.stderr)
    return 1 if wrong else 0


def found(
    only: Collection[Part], shape: Shape, dtype: torch.dtype, device: torch.device, parts: DeviceParts, ranks: int
) -> Iterator[Finding]:
    """All but the times, as they come."""
    if "numerics" in only:
        yield from check_numerics(shape, dtype, device, parts)
        yield from check_whole_steps(shape, dtype, device, parts)
    if "copies" in only:
        yield from check_block_copies(shape, dtype, device)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name:
        model, ways, tensors = (Path(name) / part for part in ("model", "ways", "tensors"))
        for directory in (model, ways, tensors):
            directory.mkdir()
        if {"ranks", "restarts"} & set(only):
            write_checkpoint(model, shape, dtype)
        layouts = layouts_of(shape, ranks)
        if "ranks" in only:
            yield from check_worlds(model, layouts, dtype, device, ways)
        if "tensors" in only:
            yield from check_shared_tensors(dtype, device, tensors)
        if "restarts" in only:
            yield from check_restarts(model, device, layouts[0] if layouts else ParallelSpec())


def measured(
    device: torch.device, dtype: torch.dtype, parts: DeviceParts, tiny: bool, fp8: bool
) -> tuple[list[StepTime | Skipped], dict[str, float]]:
    """Step times, printed as they come, and the roofline."""
    roofline = measure(device, dtype, tiny)
    print(
        f"\nmemory {roofline.bytes_per_second / 1e9:.0f} GB/s, {str(dtype).removeprefix('torch.')} products "
        f"{roofline.flops_per_second / 1e12:.1f} TFLOP/s\n\nshape weights    batch graphs  step ms  limit ms  reached"
    )
    batches, context = ([1, 3], 32) if tiny else ([1, 32, 256], 512)
    times: list[StepTime | Skipped] = []
    runs = [(TINY, False)] if tiny else [(LLAMA_1B, False), (LLAMA_8B, False), *([(LLAMA_8B, True)] if fp8 else [])]
    for shape, in_fp8 in runs:
        for one in step_times(shape, batches, context, dtype, device, parts, roofline, in_fp8):
            times.append(one)
            print(step_line(one))
    return times, attrs.asdict(roofline)


def finding_line(one: Finding) -> str:
    value = "-" if one.difference is None else f"{one.difference:.1e}"
    verdict = "" if one.difference is None else "right" if one.is_right else "WRONG"
    told = ": ".join(part for part in (verdict, one.remark) if part)
    return f"{one.name:{NAME_WIDTH}} {value:>10} {one.limit:>8.0e}  {told}"


def step_line(one: StepTime | Skipped) -> str:
    if isinstance(one, Skipped):
        return f"{one.shape:5} {one.reason}"
    return (
        f"{one.shape:5} {one.weights:10} {one.batch:5} {'yes' if one.graphs else 'no':>6} {one.seconds * 1e3:8.2f} "
        f"{one.roofline_seconds * 1e3:9.2f} {one.roofline_seconds / one.seconds:8.0%}"
    )


if __name__ == "__main__":
    sys.exit(app())
