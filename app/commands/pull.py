"""`trillm pull`: fetch a model and make it ready to be served, without serving it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from app.commands.ending import refuse, status_of, tell
from app.commands.interruption import STATUS
from app.own_command import own_command
from protocol.errors import BadRequestError

if TYPE_CHECKING:
    from app.checkpoints.inspect import Description
    from app.checkpoints.resolve import Checkpoint
    from app.commands.cached_models import CachedModel

PULL = Group("Models", sort_key=0)


def pull(
    model: str | None = None,
    /,
    *,
    revision: Annotated[str | None, Parameter(group=PULL, show_default=False)] = None,
    download_dir: Annotated[
        Path | None, Parameter(group=PULL, env_var="TRILLM_DOWNLOAD_DIR", show_default=False, show_env_var=False)
    ] = None,
    list_: Annotated[bool, Parameter(name=("--list", "-l"), group=PULL, negative=(), show_default=False)] = False,
) -> int:
    """Fetch a model and make it ready to be served, without serving it.

    MODEL is what `trillm serve` takes: a model's name on the Hugging Face Hub, a GGUF file or a model directory;
    without one it is the embedded default, SmolLM2-135M-Instruct. What is there already is not fetched again.

        trillm pull
        trillm pull Qwen/Qwen3-0.6B
        trillm pull --list

    Exit status: 0 if the model can be served, 1 if not, 130 after Ctrl-C.

    Parameters
    ----------
    revision
        A branch, tag or commit of a model on the Hub. Default: its main branch.
    download_dir
        Where models are kept, but for those of the Hub, which are in its own cache. Default:
        the user's cache directory.
    list_
        Fetch nothing: tell which models are on this disk already.
    """
    if model is None and revision is not None and not list_:
        as_here = own_command("pull", "Qwen/Qwen3-0.6B", "--revision", revision)
        raise BadRequestError(f"--revision is one of a model's on the Hub: name the model, as {as_here}")
    from app.logs import set_up_logging
    from app.settings import default_cache_directory

    set_up_logging("info")
    cache_dir = download_dir or default_cache_directory()
    try:
        if list_:
            return status_of(lambda: _list(cache_dir))
        return status_of(lambda: _pull(model, revision, cache_dir, download_dir))
    except KeyboardInterrupt:
        refuse("stopped before the model was there")
        return STATUS


def _pull(model: str | None, revision: str | None, cache_dir: Path, download_dir: Path | None) -> int:
    from app.checkpoints.inspect import describe
    from app.checkpoints.resolve import resolve
    from app.progress import open_progress

    with open_progress() as report:
        checkpoint = resolve(model, cache_dir=cache_dir, report=report, revision=revision)
    options = {"--revision": revision, "--download-dir": download_dir}
    served = [] if model is None else [model]
    for flag, value in options.items():
        served += [] if value is None else [flag, str(value)]
    return tell(told(checkpoint, describe(checkpoint.directory), own_command("serve", *served)))


def _list(cache_dir: Path) -> int:
    from app.commands.cached_models import cached_models

    return tell(listed(cached_models(cache_dir)))


def told(checkpoint: Checkpoint, description: Description, served: str) -> str:
    """What was fetched, and what to do with it."""
    context = description.max_position_embeddings
    about = description.architecture + (f", a context of {context} tokens" if context else "")
    return f"{checkpoint.name} is ready ({about})\nin {checkpoint.directory}\nServe it: {served}"


def listed(models: list[CachedModel]) -> str:
    """A table, the name first."""
    if not models:
        return f"No model is on this disk yet. Fetch the default one: {own_command('pull')}"
    names = max(len(model.name) for model in models)
    lines = [f"{model.name:{names}}  {size(model.num_bytes):>8}  {model.path}" for model in models]
    return "\n".join(lines)


def size(num_bytes: float) -> str:
    """In units of 1000, as disks and downloads are told."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= limit:
            return f"{num_bytes / limit:.1f} {unit}"
    return f"{num_bytes:.0f} B"
