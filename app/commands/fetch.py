"""From MODEL to a checkpoint on this disk, with a progress bar. Used by the commands, and by hypercorn's."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import attrs

from app.startup import Startup
from protocol.phases import START
from protocol.spec import DraftModelSpec

if TYPE_CHECKING:
    from app.checkpoints.resolve import Checkpoint
    from app.progress import Report
    from app.settings import Settings


def fetch(
    model: str | None, settings: Settings, startup: Startup | None = None, shown: Report | None = None
) -> Checkpoint:
    """The model's checkpoint directory, and its draft model's if there is one. What is fetched or converted meanwhile
    is told to `startup`, and to `shown`: by default a progress bar on a terminal, and a line in the log elsewhere."""
    from app.checkpoints.resolve import resolve
    from app.progress import open_progress

    startup = startup or Startup()
    with nullcontext(shown) if shown is not None else open_progress() as show:

        def report(what: str, done: int, total: int) -> None:
            startup.report(what, done, total)
            show(what, done, total)

        checkpoint = resolve(model, cache_dir=settings.cache_directory, report=report, revision=settings.revision)
        if not isinstance(speculative := settings.speculative, DraftModelSpec):
            startup.enter(START)
            return checkpoint
        draft = resolve(speculative.checkpoint, cache_dir=settings.cache_directory, report=report)
        startup.enter(START)
        return attrs.evolve(checkpoint, draft=draft.directory)


def shown_already(what: str, done: int, total: int) -> None:
    """For `fetch`, where somebody draws what `startup` knows."""
