"""Whether the kernel has killed anybody for want of memory: what got SIGKILL may have got it for that."""

from __future__ import annotations

from pathlib import Path

VMSTAT = Path("/proc/vmstat")


def count_oom_kills(vmstat: Path = VMSTAT) -> int | None:
    """Processes of this machine that were killed for want of memory since it was started, whether the machine's was
    short or a control group's. None if the kernel does not tell."""
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return None
    counts = [int(number) for name, _, number in (line.partition(" ") for line in lines) if name == "oom_kill"]
    return counts[0] if counts else None
