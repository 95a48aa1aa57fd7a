"""What KV connectors have in the directory that the operator gives them, by name: each engine's in one of its own if
there are several, and in it a lock and a directory for each layout. Used by actors/connectors.py and
actors/kv/disk_file, and by app/kv_start.py, which tells such a directory from somebody else's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from protocol.ids import EngineIndex

LOCK = "lock"
OF_THE_FILE_SYSTEM = ("lost+found",)
_OF_AN_ENGINE = re.compile(r"engine-[0-9]+")


def engine_directory(directory: Path, index: EngineIndex) -> Path:
    """Of one of several engines."""
    return directory / f"engine-{index}"


def is_layout_name(name: str) -> bool:
    """Whether it is a directory of ours: everything else in there is not ours to touch."""
    return len(name) >= 2 * 8 and set(name) <= set("0123456789abcdef")


def stranger(names: Iterable[str]) -> str | None:
    """One of these that are in a directory which is none of ours; None if it is empty, or ours."""
    others: list[str] = []
    for name in names:
        if name == LOCK or is_layout_name(name) or _OF_AN_ENGINE.fullmatch(name):
            return None
        if name not in OF_THE_FILE_SYSTEM:
            others.append(name)
    return min(others, default=None)
