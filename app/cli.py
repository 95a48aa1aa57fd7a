"""The `trillm` command: app/commands put together, with flags, environment and help from one class of settings."""

from __future__ import annotations

import os
import pydoc
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version as installed_version
from io import TextIOWrapper
from types import FrameType
from typing import NoReturn

from cyclopts import App, CycloptsError

from app.commands.bench import bench
from app.commands.chat import chat
from app.commands.check import check
from app.commands.complaint import complaint
from app.commands.completion import completion
from app.commands.ending import flushed, refuse, tell
from app.commands.help_page import Layout, command_page, start_page
from app.commands.help_wanted import HelpWanted, help_wanted
from app.commands.interruption import STATUS as INTERRUPTED
from app.commands.proxy import proxy
from app.commands.pull import pull
from app.commands.serve import serve
from app.commands.sources import config_sources, settings_file
from app.commands.standard_streams import open_what_is_closed
from app.commands.status import status
from app.commands.version import version
from app.logs import takes_colours
from app.settings import Settings
from protocol.errors import BadRequestError, TrillmError

MISUSED = 2
"""Exit status for a command line that cannot be meant."""
SERVE = ("serve", "proxy")
"""The commands that go on until they are told to stop."""
TAKE_SETTINGS = (*SERVE, "check")
"""The commands that variables and a file may set."""


def make_app(words: Sequence[str] = ("serve",)) -> App:
    """The command with its subcommands. `words` is the command line, which may name a file of settings; that is read
    for a command that takes them.

    Raises BadRequestError for a file that cannot be read.
    """
    app = App(name="trillm", version=lambda: f"trillm {installed_version('trillm')}", config=())
    sources = config_sources(settings_file(words, os.environ) if words[:1] and words[0] in TAKE_SETTINGS else None)
    app.command(serve, config=sources)
    app.command(chat)
    app.command(status)
    app.command(pull)
    app.command(bench)
    app.command(check, config=sources)
    app.command(proxy, config=sources)
    app.command(version)
    app.command(completion)
    return app


def subcommands(app: App) -> dict[str, App]:
    """By name, in the order in which they were added."""
    return {name: app[name] for name in app if not name.startswith("-")}


def settings_from_environment() -> tuple[str | None, Settings]:
    """MODEL and the settings as `trillm serve` without arguments would see them. Raises BadRequestError."""
    app = make_app()
    try:
        _, bound, _ = app.parse_args(["serve"], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise BadRequestError(complaint(error, ["serve"], list(subcommands(app))).splitlines()[0]) from error
    return (*bound.args, None)[0], bound.kwargs.get("settings") or Settings()


def keep_files_ours() -> None:
    """Nothing that we write is another user's to change, whatever umask we were started with: weights and kernels are
    loaded from the cache. Our children inherit it."""
    os.umask(os.umask(0o022) | 0o022)


def run(words: Sequence[str]) -> int:
    """The exit status of a command line."""
    commands = subcommands(make_app(()))
    try:
        if (wanted := help_wanted(words, commands)) is not None:
            return show_help(wanted, commands)
        status = make_app(words)(words, exit_on_error=False, print_error=False, result_action="return_value")
        return status if isinstance(status, int) else 0
    except CycloptsError as error:
        refuse(complaint(error, words, list(commands)))
        return MISUSED
    except BadRequestError as error:  # a value that no setting may have
        refuse(error.message)
        return MISUSED
    except TrillmError as error:
        return refuse(error.message)
    except OSError as error:  # such as a full disk, for what was asked for
        return refuse(str(error))


def show_help(wanted: HelpWanted, commands: dict[str, App]) -> int:
    """Raises BadRequestError for a topic that there is not."""
    layout = Layout(shutil.get_terminal_size().columns, bold if has_styles() else str)
    if wanted.command is None:
        page = start_page(commands, layout)
    else:
        page = command_page(wanted.command, commands[wanted.command], wanted.topic, layout)
    if wanted.topic == "page" and sys.stdout.isatty():
        pydoc.pager(page)
        return 0
    return tell(page)


def has_styles() -> bool:
    return sys.stdout.isatty() and takes_colours(os.environ)


def bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m"


def show_what_can_be_shown() -> None:
    """Characters that the terminal's encoding has not become question marks, instead of an error in the middle."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def main() -> None:
    open_what_is_closed()
    words = sys.argv[1:]
    signal.signal(signal.SIGTERM, told_to_stop(words))
    show_what_can_be_shown()
    keep_files_ours()
    try:
        status = run(words)
    except KeyboardInterrupt:  # a command that has anything to say of it has said it
        status = INTERRUPTED
    sys.exit(flushed(status))


def told_to_stop(words: Sequence[str]) -> Callable[[int, FrameType | None], NoReturn]:
    """What a command does at SIGTERM, unless it handles that itself: app/launch.py does while it serves,
    app/commands/interruption.py while a command waits for a server or a process."""
    return leave if words[:1] and words[0] in SERVE else give_up


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """Who is told to stop before it serves has nothing to finish."""
    sys.exit(0)


def give_up(number: int, frame: FrameType | None) -> NoReturn:
    """Any other command has not done what it was asked for."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
