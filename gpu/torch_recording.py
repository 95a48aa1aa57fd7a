"""A profile by torch.profiler: operators, and on a GPU what these launch there, under the names of our spans.

The CPU's own kernels are one span per step, since a step of theirs is one call.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import final

import torch
from torch.profiler import ProfilerActivity, profile, record_function


@final
class TorchRecording:
    """Implements gpu.profiler.Recording."""

    def __init__(self, device: torch.device) -> None:
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities, acc_events=True)
        self._profile.start()

    def span(self, name: str) -> AbstractContextManager[object]:
        return record_function(name)

    def end(self, path: Path) -> None:
        self._profile.stop()
        path.touch()  # raises what torch would only log
        self._profile.export_chrome_trace(str(path))
