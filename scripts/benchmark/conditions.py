"""What a benchmark ran on, what else the machine did, and with which model. Used by the commands of scripts/bench.

No name of a machine and no path is in it: results are shown to others.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any

import attrs

from app.checkpoints.resolve import Checkpoint, resolve
from app.settings import default_cache_directory

FEATURES = ("avx2", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16")
FEATURES_ARM = ("asimddp", "i8mm", "bf16", "sve", "sve2")
TICKS = os.sysconf("SC_CLK_TCK")
STAT_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Of the first line of /proc/stat. Guests are counted in user and nice."""


def the_checkpoint(model: str | None) -> Checkpoint:
    return resolve(model, cache_dir=default_cache_directory(), report=lambda what, done, total: None)


def conditions() -> dict[str, Any]:
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
    }


@attrs.frozen
class Moment:
    """The state of the machine at one moment."""

    at: str
    load: float
    """Of the last minute."""
    megahertz: tuple[float, ...]
    """One for each core; empty where the system does not tell."""
    ticks: dict[str, float]
    """CPU seconds of all cores since the machine started, by kind."""

    @classmethod
    def now(cls) -> Moment:
        clocks = re.findall(r"^cpu MHz\s*: ([\d.]+)", _text("/proc/cpuinfo"), re.MULTILINE)
        return cls(
            time.strftime("%Y-%m-%d %H:%M:%S %z"), os.getloadavg()[0], tuple(map(float, clocks)), cpu_seconds_by_kind()
        )

    def stolen_share(self, earlier: Moment) -> float:
        """Of all cores since then, that the hypervisor gave to others."""
        passed = {kind: self.ticks[kind] - earlier.ticks[kind] for kind in self.ticks}
        return passed.get("steal", 0.0) / (sum(passed.values()) or 1.0)


def cpu_seconds_by_kind() -> dict[str, float]:
    numbers = _text("/proc/stat").partition("\n")[0].split()[1:]
    return {kind: int(number) / TICKS for kind, number in zip(STAT_FIELDS, numbers, strict=False)}


def busy_seconds() -> float:
    """CPU seconds of all processes of this machine since it started."""
    passed = cpu_seconds_by_kind()
    return sum(seconds for kind, seconds in passed.items() if kind not in ("idle", "iowait", "steal"))


def processor() -> str:
    """As /proc/cpuinfo calls it."""
    found = re.search(r"^(?:model name|Model|cpu model)\s*: (.+)$", _text("/proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def processor_features() -> list[str]:
    found = re.search(r"^(?:flags|Features)\s*: (.+)$", _text("/proc/cpuinfo"), re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    return [name for name in (*FEATURES, *FEATURES_ARM) if name in flags]


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def governor() -> str:
    """How the first core's frequency is chosen; empty where the system does not tell, as in most virtual machines."""
    return _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip()


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def refuse(message: str) -> int:
    print(f"scripts/bench: {message}", file=sys.stderr)
    return 1
