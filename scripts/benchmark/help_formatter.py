"""Help of scripts/bench as `trillm` shows its own: without boxes, and with lines that can be copied as they are."""

from __future__ import annotations

from typing import Any, final

from cyclopts.help import HelpEntry, HelpPanel
from rich.console import Console, ConsoleOptions
from rich.text import Text

from app.commands.help_page import Layout


@final
class HelpFormatter:
    """Fulfils cyclopts' HelpFormatter, for text of its format "plaintext"."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        if not panel.entries:
            return
        layout = Layout(options.max_width)
        _print(console, f"{_text(panel.title, console)}:")
        for entry in panel.entries:
            _print(console, layout.row(", ".join(entry.display_labels_with_metavar), _told(entry, console)))
        _print(console, "")

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:  # noqa: ANN401
        _print(console, f"Usage: {_text(usage, console).strip()}\n")

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:  # noqa: ANN401
        layout = Layout(options.max_width)
        for paragraph in _text(description, console).split("\n\n"):
            is_kept = paragraph.startswith(" ")
            _print(console, f"{paragraph if is_kept else layout.wrap(' '.join(paragraph.split()))}\n")


def _told(entry: HelpEntry, console: Console) -> str:
    notes = [f"[choices: {', '.join(entry.choices)}]"] if entry.choices else []
    default = (entry.default or "").strip('[]"').replace("'", "")
    notes += [f"[default: {default}]"] if default not in ("", "False") else []
    return " ".join([*_text(entry.description, console).split(), *notes])


def _text(what: Any, console: Console) -> str:  # noqa: ANN401  whatever rich draws, or text
    if what is None or isinstance(what, str):
        return what or ""
    if isinstance(what, Text):
        return what.plain
    with console.capture() as capture:
        console.print(what, no_wrap=True, soft_wrap=True)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
