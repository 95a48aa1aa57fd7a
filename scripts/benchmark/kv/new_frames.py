"""Frames as they are in a window that is new: without memory, which the system finds page by page when they are first
written. That takes many times as long as the writing."""

from __future__ import annotations

import mmap
from typing import final

from actors.kv.window import Window


@final
class NewFrames:
    """Of a window. A context."""

    def __init__(self, window: Window) -> None:
        self._mapped = mmap.mmap(window.descriptor, window.num_frames * window.frame_bytes)

    def renew(self) -> None:
        """Nobody's mapping of them has memory any more."""
        self._mapped.madvise(mmap.MADV_REMOVE)

    def __enter__(self) -> NewFrames:
        return self

    def __exit__(self, *_: object) -> None:
        self._mapped.close()
