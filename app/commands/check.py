"""`trillm check`: what this machine can run, and whether a model would."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import trio
from cyclopts import Group, Parameter

from app.commands.ending import status_of, tell
from app.commands.interruption import STATUS, unless_interrupted
from app.logs import takes_colours
from app.own_command import own_command
from app.settings import SERVER, Settings
from protocol.errors import CheckpointError, StartError, TrillmError

if TYPE_CHECKING:
    from app.checkpoints.resolve import Checkpoint
    from app.checkup.finding import Finding
    from app.checkup.listener import Listener
    from protocol.machine import ProbeAsked, Probed

CHECK = Group("Check", sort_key=0)


def check(
    model: str | None = None,
    *,
    json: Annotated[bool, Parameter(group=CHECK, negative=(), show_default=False)] = False,
    config: Annotated[Path | None, Parameter(group=SERVER, show_default=False)] = None,
    settings: Annotated[Settings | None, Parameter(name="*")] = None,
) -> int:
    """Tell what this machine can run, and what keeps it from serving.

    With a MODEL that is on this disk (see `trillm pull`) it tells whether its files are whole, whether it fits, and
    for how long a context. It takes the flags of `trillm serve`: those that you mean to serve with. Nothing is
    downloaded, nothing is loaded.

        trillm check
        trillm check Qwen/Qwen3-0.6B --max-model-len 32k
        trillm check ./model.gguf --json

    Exit status: 0 if a server would run (also where one listens already), 1 if something keeps it from that.

    Parameters
    ----------
    json
        Write JSON: {"ok": true, "findings": [{"name", "mark", "text", "remedy"}]}.
    config
        A TOML file with settings: port = 8080. Default: the one that TRILLM_CONFIG names.
    """
    return status_of(lambda: _check(model, settings or Settings(), as_json=json))


def _check(model: str | None, settings: Settings, *, as_json: bool) -> int:
    from app.checkup import report
    from app.checkup.finding import Mark
    from app.checkup.listener import find_listener
    from app.checkup.probing import probe

    seen: Seen | None = None

    async def see() -> None:
        nonlocal seen
        seen = await look(model, settings, probe, find_listener)

    trio.run(unless_interrupted, see)
    if seen is None:
        return STATUS
    if as_json:
        text = report.as_json(seen.findings)
    else:
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        styled = sys.stdout.isatty() and takes_colours(os.environ)
        look_of_it = report.Look(min(shutil.get_terminal_size().columns, 110), utf8, styled)
        verdict = report.verdict(seen.findings, next_command(seen, model, settings))
        text = f"{report.table(seen.findings, look_of_it)}\n\n{verdict}"
    unwritten = tell(text)
    return unwritten or int(any(finding.mark is Mark.FAIL for finding in seen.findings))


@attrs.frozen
class Seen:
    """What a look has found."""

    findings: list[Finding]
    """In their order."""
    free_port: int | None = None
    """Where a server could listen, if somebody listens where it was to."""
    is_missing: bool = False
    """The model is to be fetched first."""


async def look(
    model: str | None,
    settings: Settings,
    probe: Callable[[ProbeAsked], Awaitable[Probed]],
    find_listener: Callable[[Settings], Awaitable[Listener | None]],
) -> Seen:
    """`probe` asks who loads torch, `find_listener` who listens where the server would."""
    from app.checkpoints.resolve import is_path
    from app.checkup.finding import Finding, Mark
    from app.checkup.machine import look_around
    from app.checkup.machine_findings import machine_findings, no_torch, sizes_that_fit
    from app.checkup.model_findings import model_findings
    from protocol.machine import ProbeAsked

    machine = await trio.to_thread.run_sync(look_around, settings)
    listener = await find_listener(settings) if machine.address.is_taken else None
    checkpoint: Checkpoint | None = None
    about_model: list[Finding] = []
    is_missing = False
    if model is not None:
        try:
            checkpoint = await trio.to_thread.run_sync(_found, model, settings)
        except TrillmError as error:
            is_of_hub = isinstance(error, CheckpointError) and not is_path(model)
            remedy = (
                f"if its download was cut off, {pull_command(model, settings)} goes on with it" if is_of_hub else ""
            )
            about_model.append(Finding("model", Mark.FAIL, error.message, remedy))
        else:
            is_missing = checkpoint is None
    if model is not None and is_missing:
        about_model.append(not_here(model, settings))
    spec = None if checkpoint is None else settings.house(checkpoint.directory).engine
    probed: Probed | None = None
    try:
        probed = await probe(ProbeAsked(str(settings.cache_directory), spec))
    except StartError as error:
        about_model.insert(0, no_torch(error.message))
    if probed is not None and checkpoint is not None:
        about_model += model_findings(probed, settings, machine, listener)
    elif probed is not None and model is None:
        about_model.append(sizes_that_fit(machine, probed, listener))
    findings = [*machine_findings(machine, probed, settings, listener), *about_model]
    return Seen(findings, None if listener is None else machine.address.free_port, is_missing)


def not_here(model: str, settings: Settings) -> Finding:
    from app.checkup.finding import Finding, Mark

    text = f"{model} is not on this disk, so there is nothing to look at"
    return Finding("model", Mark.WARN, text, f"{pull_command(model, settings)} fetches it")


def pull_command(model: str, settings: Settings) -> str:
    where = {"--revision": settings.revision, "--download-dir": settings.download_dir}
    flags = [word for flag, value in where.items() if value is not None for word in (flag, str(value))]
    return own_command("pull", model, *flags)


def next_command(seen: Seen, model: str | None, settings: Settings) -> str:
    """What to do if nothing keeps a server from running."""
    if seen.is_missing:
        return pull_command(model or "", settings)
    words = [] if model is None else [model]
    if seen.free_port is not None:
        words += ["--port", str(seen.free_port)]
        settings = attrs.evolve(settings, port=Settings().port)
    same = "" if settings == Settings() else ", with the flags that you have given here"
    return f"{own_command('serve', *words)}{same}"


def _found(model: str, settings: Settings) -> Checkpoint | None:
    """The checkpoint as `trillm serve` would have it, if it is on this disk. Raises CheckpointError for one that is not
    whole, StartError for one that cannot be cut as is asked for."""
    from app.checkpoints.default_model import FILE, NAME
    from app.checkpoints.hub import find_repository
    from app.checkpoints.resolve import Checkpoint, Source, is_path, resolve
    from app.launch import checked

    cache = settings.cache_directory
    if model.lower() == NAME.lower():
        if not (cache / "default" / FILE).is_file():
            return None
        found = resolve(model, cache_dir=cache, report=lambda *_: None)
    elif is_path(model):
        found = resolve(model, cache_dir=cache, report=lambda *_: None)
    else:
        directory = find_repository(model, settings.revision)
        if directory is None:
            return None
        found = Checkpoint(directory, model, Source.HUB)
    checked(settings, found)
    return found
