"""From MODEL to a checkpoint on this disk, with a progress bar. Used by the commands, and by hypercorn's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from protocol.spec import DraftModelSpec

if TYPE_CHECKING:
    from app.checkpoints.resolve import Checkpoint
    from app.settings import Settings


def fetch(model: str | None, settings: Settings) -> Checkpoint:
    """The model's checkpoint directory, and its draft model's if there is one, with a progress bar on a terminal while
    something is fetched or converted."""
    from app.checkpoints.resolve import resolve
    from app.progress import open_progress

    with open_progress() as report:
        checkpoint = resolve(model, cache_dir=settings.cache_directory, report=report, revision=settings.revision)
        if not isinstance(speculative := settings.speculative, DraftModelSpec):
            return checkpoint
        draft = resolve(speculative.checkpoint, cache_dir=settings.cache_directory, report=report)
        return attrs.evolve(checkpoint, draft=draft.directory)
