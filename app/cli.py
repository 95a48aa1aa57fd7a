"""The `trillm` command: flags, environment and help from app/settings.py's one class."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from importlib.metadata import version as installed_version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import attrs
import trio
from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict, Env

from app import accept_complaints
from app.hosts import Torchrun
from app.proxy.settings import ProxySettings
from app.settings import Settings
from protocol.errors import BadRequestError, TrillmError
from protocol.spec import DraftModelSpec

if TYPE_CHECKING:
    from app.checkpoints.resolve import Checkpoint

Config = Env | Dict


def config_sources() -> list[Config]:
    """Where settings come from besides the flags, the stronger first: TRILLM_* variables, then TRILLM_CONFIG's file.

    Raises BadRequestError for a file that cannot be read.
    """
    sources: list[Config] = [Env("TRILLM_", command=False)]
    if path := os.environ.get("TRILLM_CONFIG"):
        sources.append(Dict(read_toml(path), use_commands_as_keys=False, source=path))
    return sources


def warn_of_unknown_variables(settings: type[Settings | ProxySettings] = Settings) -> None:
    """Of TRILLM_* variables that set nothing: most likely misspelt. (The flags and the file are strict.)"""
    known = {"TRILLM_CONFIG", "TRILLM_MODEL", *(f"TRILLM_{field.name.upper()}" for field in attrs.fields(settings))}
    for name in sorted(os.environ):
        if name.startswith("TRILLM_") and name not in known:
            near = get_close_matches(name, known, 1)
            guess = f"; did you mean {near[0]}?" if near else ""
            logging.getLogger("trillm").warning("%s is no setting, and is ignored%s", name, guess)


def read_toml(path: str) -> dict[str, Any]:
    """Raises BadRequestError."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # also what is no TOML, or not even UTF-8
        raise BadRequestError(f"{path} (TRILLM_CONFIG) cannot be read: {error}") from error


def make_app() -> App:
    """The command with its subcommands."""
    app = App(
        name="trillm",
        help="Serve large language models over the OpenAI HTTP API.",
        version=lambda: installed_version("trillm"),
        config=config_sources(),
    )
    app.command(serve)
    app.command(proxy)
    return app


def serve(model: str | None = None, *, settings: Annotated[Settings | None, Parameter(name="*")] = None) -> int:
    """Serve MODEL until SIGTERM or Ctrl-C.

    MODEL is a GGUF file, a Hugging Face model directory, or a model's name on the Hub; without one it is the embedded
    default, SmolLM2-135M-Instruct. Each flag can also be set by the environment variable that is shown with it, or in
    a TOML file that TRILLM_CONFIG names.

    Exit status: 0 after a signal, 1 if it could not start or go on, 2 for a flag that does not exist or
    a value that is not of its kind.
    """
    chosen = settings or Settings()
    if chosen.nnodes == 1 and (told := Torchrun.of(os.environ)) is not None:
        chosen = attrs.evolve(
            chosen, nnodes=told.nnodes, node_rank=told.node_rank, master_addr=chosen.master_addr or told.master_addr
        )
    set_up_logging(chosen.log_level)
    warn_of_unknown_variables()
    from app.launch import serve as serve_forever
    from app.notify import take_variables

    manager = take_variables(os.environ)
    return status_of(lambda: trio.run(serve_forever, chosen, fetch(model, chosen), manager))


def proxy(*, settings: Annotated[ProxySettings | None, Parameter(name="*")] = None) -> int:
    """Serve in front of servers that compute prompts (--prefill) and servers that go on with them (--decode).

    They are servers of trillm with a --kv-transfer-config, or vLLM's. What one of them cannot do, another one does; if
    no prefill server answers, a decode server computes the prompt. Each flag can also be set by the environment
    variable that is shown with it, or in a TOML file that TRILLM_CONFIG names. Exit statuses are those of serve.
    """
    chosen = settings or ProxySettings()
    set_up_logging(chosen.log_level)
    warn_of_unknown_variables(ProxySettings)
    from app.proxy.serving import serve_proxy

    return status_of(lambda: trio.run(serve_proxy, chosen))


def status_of(run: Callable[[], int]) -> int:
    """Its status, or one sentence and the status of a failure that the operator can do something about."""
    reasons: list[str] = []
    try:
        return run()
    except* (TrillmError, OSError) as group:  # what fails inside a nursery comes out of it in a group
        reasons = [str(error) for error in leaves(group)]
    return refuse("; ".join(dict.fromkeys(reasons)))


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The errors themselves, out of groups within groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


def settings_from_environment() -> tuple[str | None, Settings]:
    """MODEL and the settings as `trillm serve` without arguments would see them. Raises BadRequestError."""
    try:
        _, bound, _ = make_app().parse_args(["serve"], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise BadRequestError(" ".join(str(error).split())) from error
    return (*bound.args, None)[0], bound.kwargs.get("settings") or Settings()


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


def set_up_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    quieten_libraries()


def quieten_libraries() -> None:
    """What others log that is not for this log."""
    for library in ("httpx", "httpx2", "httpcore2", "hpack", "h2"):  # hpack tells each header at debug: keys, too
        logging.getLogger(library).setLevel(logging.WARNING)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # tracebacks of what app/tools tells in a sentence
    logging.getLogger(accept_complaints.LOGGER).addFilter(accept_complaints.OneLineASecond())


def keep_files_ours() -> None:
    """Nothing that we write is another user's to change, whatever umask we were started with: weights and kernels are
    loaded from the cache. Our children inherit it."""
    os.umask(os.umask(0o022) | 0o022)


def refuse(message: str) -> int:
    """One sentence for the operator, and the exit status."""
    print(f"trillm: {message}", file=sys.stderr)  # noqa: T201  the operator may have no log
    return 1


def main() -> None:
    signal.signal(signal.SIGTERM, leave)
    keep_files_ours()
    try:
        sys.exit(make_app()(result_action="return_value"))
    except TrillmError as error:  # a value that no setting may have
        sys.exit(refuse(error.message))


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """Who is told to stop before it serves has nothing to finish. While it serves, app/launch.py handles signals."""
    sys.exit(0)


if __name__ == "__main__":
    main()
