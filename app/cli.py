"""The `trillm` command: app/commands put together, with flags, environment and help from one class of settings."""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import version as installed_version
from types import FrameType
from typing import NoReturn

from cyclopts import App, CycloptsError

from app.commands.chat import chat
from app.commands.ending import refuse
from app.commands.proxy import proxy
from app.commands.serve import serve
from app.commands.sources import config_sources
from app.settings import Settings
from protocol.errors import BadRequestError, TrillmError


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
    app.command(chat, config=())
    return app


def settings_from_environment() -> tuple[str | None, Settings]:
    """MODEL and the settings as `trillm serve` without arguments would see them. Raises BadRequestError."""
    try:
        _, bound, _ = make_app().parse_args(["serve"], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise BadRequestError(" ".join(str(error).split())) from error
    return (*bound.args, None)[0], bound.kwargs.get("settings") or Settings()


def keep_files_ours() -> None:
    """Nothing that we write is another user's to change, whatever umask we were started with: weights and kernels are
    loaded from the cache. Our children inherit it."""
    os.umask(os.umask(0o022) | 0o022)


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
