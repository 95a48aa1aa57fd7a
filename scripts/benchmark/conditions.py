"""What a benchmark ran on, and with which model. Used by the commands of scripts/bench."""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import Any

from app.checkpoints.resolve import Checkpoint, resolve
from app.settings import default_cache_directory


def the_checkpoint(model: str | None) -> Checkpoint:
    return resolve(model, cache_dir=default_cache_directory(), report=lambda what, done, total: None)


def conditions() -> dict[str, Any]:
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
    }


def refuse(message: str) -> int:
    print(f"scripts/bench: {message}", file=sys.stderr)
    return 1
