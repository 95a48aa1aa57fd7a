"""Brings a model repository from the Hugging Face Hub into that library's own cache. Used by resolve.

Its own cache and not ours, so that a model that any other program has fetched is served without fetching it again,
also without a network.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDoneYet
from pathlib import Path

from protocol.errors import CheckpointError

Report = Callable[[str, int, int], None]

PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
"""What a checkpoint directory can use; no .bin or .pth, which are pickles."""
UNWANTED = ["original/*", "consolidated*"]
"""The same weights a second time, as some makers of models put them there."""
PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
REPOSITORY = re.compile(rf"{PART}(/{PART})?")
POLL_SECONDS = 0.2


class Abandoned(Exception):
    """Raised in the downloading threads when nobody waits for them any more."""


class Progress:
    """Bytes done and to do, written by the downloading threads, read by the thread that waits."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self.abandoned = False

    def bar(self) -> type:
        """A class for the library's `tqdm_class` that shows nothing and writes here."""
        from huggingface_hub.utils.tqdm import tqdm

        progress = self

        class Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
            monitor_interval = 0  # tqdm would start a thread that outlives us

            def __init__(self, *args: object, **kwargs: object) -> None:
                shown_nowhere = {"file": io.StringIO(), "disable": False, "mininterval": 0}
                super().__init__(*args, **(kwargs | shown_nowhere))  # type: ignore[no-untyped-call]

            def update(self, n: float | None = 1) -> bool | None:
                if progress.abandoned:
                    raise Abandoned
                shown: bool | None = super().update(n)
                return shown

            def display(self, *_args: object, **_kwargs: object) -> bool:
                if self.unit == "B":
                    progress.done, progress.total = max(progress.done, int(self.n)), int(self.total or 0)
                return True

        return Bar


def fetch_repository(
    repository: str,
    report: Report,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    hub_cache: Path | None = None,
) -> Path:
    """The directory of a repository's snapshot, fetched as far as it is not in the cache.

    `endpoint` and `hub_cache` default to what the library's environment variables say. Raises CheckpointError in one
    sentence: not a repository's name, not found, gated, unreachable and not in the cache, no room. An exception from
    `report` ends the download.
    """
    if not REPOSITORY.fullmatch(repository):
        raise CheckpointError(
            f"{repository!r} is neither a path that exists nor the name of a model on the Hub (org/name)"
        )
    progress = Progress()
    with ThreadPoolExecutor(1, thread_name_prefix="hub") as pool:
        future = pool.submit(_download, repository, revision, endpoint, hub_cache, progress)
        try:
            return _wait(future, repository, progress, report)
        finally:
            progress.abandoned = True


def find_repository(repository: str, revision: str | None = None, hub_cache: Path | None = None) -> Path | None:
    """The directory of its snapshot, if it has been fetched; no network is asked. A name that is none is not there."""
    from huggingface_hub import errors, snapshot_download

    try:
        found = snapshot_download(
            repository,
            revision=revision,
            cache_dir=hub_cache,
            allow_patterns=PATTERNS,
            ignore_patterns=UNWANTED,
            local_files_only=True,
        )
    except (errors.LocalEntryNotFoundError, errors.HFValidationError):
        return None
    return Path(found)


def _wait(future: Future[str], repository: str, progress: Progress, report: Report) -> Path:
    while True:
        try:
            return Path(future.result(POLL_SECONDS))
        except NotDoneYet:
            if future.done():  # the download's own timeout, not ours
                raise
            report(f"fetching {repository}", progress.done, progress.total)


def _download(
    repository: str, revision: str | None, endpoint: str | None, hub_cache: Path | None, progress: Progress
) -> str:
    # Imported here: the library is only needed for models that come from the Hub.
    from huggingface_hub import errors, snapshot_download

    named = repository if revision is None else f"{repository} (revision {revision})"
    try:
        return snapshot_download(
            repository,
            revision=revision,
            endpoint=endpoint,
            cache_dir=hub_cache,
            allow_patterns=PATTERNS,
            ignore_patterns=UNWANTED,
            tqdm_class=progress.bar(),
        )
    except errors.GatedRepoError as error:
        reason = "is gated: accept its conditions on the Hub and log in with `hf auth login` or set HF_TOKEN"
        raise CheckpointError(f"the model {named} {reason}") from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"the model {named} has no such revision on the Hub") from error
    except errors.RepositoryNotFoundError as error:
        reason = "was not found: no such path here and no such model on the Hub (or a private one: set HF_TOKEN)"
        raise CheckpointError(f"the model {named} {reason}") from error
    except errors.LocalEntryNotFoundError as error:
        reason = "is not wholly in the local cache and the Hub cannot be reached"
        raise CheckpointError(f"the model {named} {reason}; give the path of a model directory instead") from error
    except Abandoned:
        raise
    # The library lets its HTTP client's, its storage's and its own errors through: for the operator all are one.
    except Exception as error:
        first = str(error).strip().splitlines() or [""]
        raise CheckpointError(f"the model {named} could not be fetched: {type(error).__name__}: {first[0]}") from error
