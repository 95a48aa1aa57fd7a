"""What the device can do at most, measured here and now: bytes copied and floating point operations per second."""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
import torch

REPEATS = 10


@attrs.frozen
class Roofline:
    """A step is at least as slow as either of them demands."""

    bytes_per_second: float
    flops_per_second: float

    def seconds(self, num_bytes: float, flops: float) -> float:
        return max(num_bytes / self.bytes_per_second, flops / self.flops_per_second)


def measure(device: torch.device, dtype: torch.dtype, tiny: bool) -> Roofline:
    """Copies memory (counted as read and written) and multiplies square matrices."""
    size, side = (1 << 22, 256) if tiny else (1 << 30, 8192)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    copy = seconds_of(lambda: target.copy_(source), device)
    multiply = seconds_of(lambda: left @ right, device)
    return Roofline(2 * size / copy, 2 * side**3 / multiply)


def seconds_of(run: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """The median of `repeats` runs after two that warm up, each waited for."""
    times = []
    for _ in range(repeats + 2):
        synchronise(device)
        before = time.perf_counter()
        run()
        synchronise(device)
        times.append(time.perf_counter() - before)
    return sorted(times[2:])[repeats // 2]


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
