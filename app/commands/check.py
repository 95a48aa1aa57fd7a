"""`trillm check`: what this machine can run, and whether a model would."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import trio
from cyclopts import Group, Parameter

from app.commands.ending import status_of, tell
from app.settings import SERVER, Settings
from protocol.errors import TrillmError

if TYPE_CHECKING:
    from app.checkpoints.resolve import Checkpoint
    from app.checkup.finding import Finding
    from protocol.machine import ProbeAsked, Probed

CHECK = Group("Check", sort_key=0)
FETCHES = " fetches it"


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

    Exit status: 0 if a server would run, 1 if something keeps it from that.

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
    from app.checkup.probing import probe

    findings = trio.run(look, model, settings, probe)
    if as_json:
        text = report.as_json(findings)
    else:
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        styled = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        look_of_it = report.Look(min(shutil.get_terminal_size().columns, 110), utf8, styled)
        command = shlex.join(["trillm", "serve", *([] if model is None else [model])])
        if any(finding == not_here(model or "") for finding in findings):
            command = not_here(model or "").remedy.removesuffix(FETCHES)
        elif settings != Settings():
            command += " (with the flags that you have given here)"
        text = f"{report.table(findings, look_of_it)}\n\n{report.verdict(findings, command)}"
    tell(text)
    return int(any(finding.mark is Mark.FAIL for finding in findings))


async def look(
    model: str | None, settings: Settings, probe: Callable[[ProbeAsked], Awaitable[Probed]]
) -> list[Finding]:
    """All findings, in their order. `probe` asks who loads torch, and its errors come out of here."""
    from app.checkup.finding import Finding, Mark
    from app.checkup.machine import look_around
    from app.checkup.machine_findings import machine_findings, sizes_that_fit
    from app.checkup.model_findings import model_findings
    from protocol.machine import ProbeAsked

    machine = await trio.to_thread.run_sync(look_around, settings)
    checkpoint: Checkpoint | None = None
    about_model: list[Finding] = []
    if model is not None:
        try:
            checkpoint = await trio.to_thread.run_sync(_found, model, settings)
        except TrillmError as error:
            about_model.append(Finding("model", Mark.FAIL, error.message))
        else:
            if checkpoint is None:
                about_model.append(not_here(model))
    spec = None if checkpoint is None else settings.house(checkpoint.directory).engine
    probed = await probe(ProbeAsked(str(settings.cache_directory), spec))
    if checkpoint is not None:
        about_model += model_findings(probed, settings, machine)
    elif model is None:
        about_model.append(sizes_that_fit(machine, probed))
    return [*machine_findings(machine, probed, settings), *about_model]


def not_here(model: str) -> Finding:
    from app.checkup.finding import Finding, Mark

    text = f"{model} is not on this disk, so there is nothing to look at"
    return Finding("model", Mark.WARN, text, f"trillm pull {shlex.quote(model)}{FETCHES}")


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
