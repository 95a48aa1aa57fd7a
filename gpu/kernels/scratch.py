"""A directory beside what is made in it, so that the whole can be renamed into its place. Used by build and laid_out.

Whoever is killed meanwhile, as by Ctrl-C in a first start, leaves theirs behind, with as much as the weights in it: the
next one takes it away. A lock, which ends with its process, says whether somebody still works there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = ".new-"
BEGUN = ".begun-"
"""Before it is locked: nobody takes those away."""


@contextmanager
def open_scratch(parent: Path) -> Iterator[Path]:
    """In `parent`, and gone afterwards. Raises OSError."""
    for left in parent.glob(f"{PREFIX}*"):
        _remove_if_left(left)
    begun = Path(tempfile.mkdtemp(prefix=BEGUN, dir=parent))
    descriptor = os.open(begun, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # where there are no locks nobody gets one, and all is left
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        scratch = begun.rename(parent / f"{PREFIX}{begun.name.removeprefix(BEGUN)}")
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch)
    finally:
        os.close(descriptor)


def _remove_if_left(directory: Path) -> None:
    """Unless somebody works in it, or it is somebody else's."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
        finally:
            os.close(descriptor)
