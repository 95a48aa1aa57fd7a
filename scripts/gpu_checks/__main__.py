"""The command line of scripts/gpu_check."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import torch
from cyclopts import App, Parameter

from gpu.cuda_model import DeviceParts, cuda_parts
from scripts.gpu_checks.numerics import Finding, check_numerics
from scripts.gpu_checks.random_model import LLAMA_1B, LLAMA_8B, SMALL, TINY
from scripts.gpu_checks.roofline import measure
from scripts.gpu_checks.steps import Skipped, StepTime, step_times
from scripts.gpu_checks.whole_steps import check_whole_steps
from scripts.gpu_checks.without_gpu import cpu_parts

app = App(
    name="scripts/gpu_check",
    help="""Hold what a GPU computes to float64 on the CPU, and its decode steps to the card's own speed.

    Prints tables; --output FILE also writes them as JSON. Exits with 1 if there is no GPU, or if something differs.
    """,
)


@app.default
def check(
    *,
    device: Literal["cuda", "cpu"] = "cuda",
    tiny: bool = False,
    fp8: bool = False,
    output: Annotated[Path | None, Parameter()] = None,
) -> int:
    """device: "cpu" is for trying out the script, with --tiny. fp8: also time the 8B shape with 8-bit weights."""
    if device == "cuda" and not torch.cuda.is_available():
        print("There is nothing to check: torch sees no CUDA device.", file=sys.stderr)
        return 1
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    begun, where = time.perf_counter(), torch.device(device)
    parts = cuda_parts() if device == "cuda" else cpu_parts()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.inference_mode():
        shape = TINY if tiny else SMALL
        findings = check_numerics(shape, dtype, where, parts)
        findings += check_whole_steps(shape, dtype, where, parts)
        print(numerics_table(findings))
        times, speed = measured(where, dtype, parts, tiny, fp8)
    print(f"\n{time.perf_counter() - begun:.0f} s in all")
    if output is not None:
        result: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "torch": torch.__version__,
            "numerics": [attrs.asdict(finding) for finding in findings],
            "roofline": speed,
            "steps": [attrs.asdict(one) for one in times],
        }
        output.write_text(json.dumps(result, indent=1) + "\n")
    wrong = [finding.name for finding in findings if finding.difference is not None and not finding.is_right]
    if wrong:
        print(f"These differ from float64 by more than they may: {', '.join(wrong)}.", file=sys.stderr)
    return 1 if wrong else 0


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


def numerics_table(findings: list[Finding]) -> str:
    lines = [f"{'compared with float64':28} {'differs by':>10} {'limit':>8}"]
    for one in findings:
        value = "-" if one.difference is None else f"{one.difference:.1e}"
        verdict = one.remark if one.difference is None else "right" if one.is_right else "WRONG"
        lines.append(f"{one.name:28} {value:>10} {one.limit:>8.0e}  {verdict}")
    return "\n".join(lines)


def step_line(one: StepTime | Skipped) -> str:
    if isinstance(one, Skipped):
        return f"{one.shape:5} {one.reason}"
    return (
        f"{one.shape:5} {one.weights:10} {one.batch:5} {'yes' if one.graphs else 'no':>6} {one.seconds * 1e3:8.2f} "
        f"{one.roofline_seconds * 1e3:9.2f} {one.roofline_seconds / one.seconds:8.0%}"
    )


if __name__ == "__main__":
    sys.exit(app())
