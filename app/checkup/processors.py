"""What this machine computes with: cores that we may use, and what they can. Used by app/checkup/machine.py."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

import attrs

CPUINFO = Path("/proc/cpuinfo")
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
X86 = ("avx512_vnni", "avx512f", "avx2")
ARM = ("asimddp", "asimd")


@attrs.frozen
class Processors:
    model: str
    """"" if it is not told."""
    cores: int
    """That this process may run on."""
    quota: float
    """Cores' worth of time that its control group may take; infinite without a limit."""
    instructions: str
    """The best of those that the kernels are written for; "" for none."""


def processors(cpuinfo: str | None = None, cpu_max: str | None = None) -> Processors:
    """Of this machine, unless told what its files say."""
    told = _read(CPUINFO) if cpuinfo is None else cpuinfo
    flags = next((line for line in told.splitlines() if line.startswith(("flags", "Features"))), "").split()
    model = next((line.split(":", 1)[1].strip() for line in told.splitlines() if line.startswith("model name")), "")
    wanted = ARM if platform.machine() in ("aarch64", "arm64") else X86
    return Processors(
        model=model,
        cores=len(os.sched_getaffinity(0)),
        quota=_quota(_read(CPU_MAX) if cpu_max is None else cpu_max),
        instructions=next((name for name in wanted if name in flags), ""),
    )


def _quota(cpu_max: str) -> float:
    """Of "200000 100000" or "max 100000"."""
    parts = cpu_max.split()
    return math.inf if len(parts) != 2 or parts[0] == "max" else int(parts[0]) / int(parts[1])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
