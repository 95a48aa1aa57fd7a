"""What a person types into `trillm chat`: lines with editing and a history, and several lines as one. Used by
app/commands/chat_session.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.commands.chat_line import WORDS

FENCE = '"""'
PROMPT, CONTINUED = "> ", ". "
MOST_LINES = 1000
"""Of the history."""

ReadLine = Callable[[str], str]
"""Gets a prompt. Raises EOFError and KeyboardInterrupt as `input` does."""


def history_path() -> Path:
    """$XDG_STATE_HOME/trillm/chat_history, or ~/.local/state/trillm/chat_history."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "trillm" / "chat_history"


def read_text(read_line: ReadLine) -> str:
    """A line, or all lines between fences, or all that end with a backslash and the one after."""
    line = read_line(PROMPT)
    if line.lstrip().startswith(FENCE):
        lines = [line.lstrip()[len(FENCE) :]]
        while not lines[-1].rstrip().endswith(FENCE):
            lines.append(read_line(CONTINUED))
        lines[-1] = lines[-1].rstrip()[: -len(FENCE)]
        return " " + "\n".join(lines).strip("\n")  # never a command
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(read_line(CONTINUED))
    return "\n".join(lines)


@contextmanager
def open_line_editor() -> Iterator[ReadLine]:
    """Arrow keys, history over sessions, and Tab for commands, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield input
        return
    path = history_path()
    readline.set_completer(_complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    with suppress(OSError):  # there is none yet, or none that we may read
        readline.read_history_file(path)
    readline.set_history_length(MOST_LINES)
    try:
        yield input
    finally:
        with suppress(OSError):  # a history that cannot be kept is no reason to fail
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)


def _complete(text: str, number: int) -> str | None:
    found = [word + " " for word in WORDS if text.startswith("/") and word.startswith(text)]
    return found[number] if number < len(found) else None
