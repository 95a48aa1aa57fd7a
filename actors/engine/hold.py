"""How far a scheduler is kept from taking steps: set by the engine's operations, read where sequences are admitted."""

from __future__ import annotations

import enum


class Hold(enum.IntEnum):
    """The higher one counts where there are several reasons."""

    NONE = 0
    NEW = 1
    """Those that have begun are finished; nobody begins."""
    ALL = 2
    """No more steps are planned; those in flight are still committed."""
