"""The pages of help: what one wants first on one screen, and all the rest by group. Used by app/cli.py; pure."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches

import attrs
from cyclopts import App

from app.commands.flag_text import FlagText, flag_texts
from protocol.errors import BadRequestError

EVERYDAY: Mapping[str, Mapping[str, str]] = {
    "serve": {
        "--host": "address to listen on; 0.0.0.0 for all, with an --api-key",
        "--port": "port to listen on (8000)",
        "--api-key": "key that clients need; better as VLLM_API_KEY",
        "--served-model-name": "what clients call the model",
        "--config": "TOML file with settings: port = 8080",
        "--device": "auto, cpu or cuda",
        "--dtype": "auto, float32, bfloat16, float16, int8",
        "--quantization": "fp8 rounds weights, on GPUs that can",
        "--max-model-len": "tokens of prompt and answer: 16384, 16K",
        "--tool-call-parser": "hermes, llama3_json...; found by itself",
        "--reasoning-parser": "qwen3, deepseek_r1...; found by itself",
        "--max-num-seqs": "requests in one batch (64)",
        "--kv-cache-memory-bytes": "memory for keys and values: 8G",
        "--tensor-parallel-size": "GPUs, or processes, for one model",
        "--data-parallel-size": "engines, each with the whole model",
        "--enable-lora": "take LoRA adapters (--help=lora)",
        "--log-level": "debug, info, warning or error",
    },
    "check": {
        "--json": "findings as JSON, for programs",
        "--config": "TOML file with settings that a server would have",
        "--device": "auto, cpu or cuda",
        "--dtype": "auto, float32, bfloat16, float16, int8",
        "--max-model-len": "tokens of prompt and answer: 16384, 16K",
        "--kv-cache-memory-bytes": "memory for keys and values: 8G",
        "--kv-cache-dtype": "auto, fp8, fp8_e4m3 or fp8_e5m2",
        "--tensor-parallel-size": "GPUs, or processes, for one model",
        "--data-parallel-size": "engines, each with the whole model",
        "--port": "port that a server would listen on (8000)",
        "--download-dir": "where models are kept",
    },
}
"""By command: the flags of its short page, each in a few words. A command that is not here shows all that it has."""
_COLUMN = 30
_NARROW = 60
_WIDEST = 100
_START = """\
Usage: trillm COMMAND [FLAGS]

A server for large language models with the OpenAI HTTP API. Start here:

  trillm check                    what this machine can run
  trillm serve                    serve a small model on http://127.0.0.1:8000
  trillm serve Qwen/Qwen3-0.6B    serve a model of the Hugging Face Hub
  trillm chat                     talk to it, from another terminal

"""
_END = (
    "`trillm COMMAND --help` says more of each. `trillm completion --help` tells how bash, zsh and fish complete its "
    "words."
)


@attrs.frozen
class Layout:
    """How a page lies on a terminal."""

    width: int = 80
    bold: Callable[[str], str] = str

    def wrap(self, text: str, indent: int = 0, first: str = "") -> str:
        return textwrap.fill(
            text,
            max(min(self.width, _WIDEST), 24),
            initial_indent=first or " " * indent,
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
            break_long_words=False,
        )

    def row(self, label: str, text: str, column: int = _COLUMN) -> str:
        """A flag and what it does, side by side if there is room."""
        if self.width < _NARROW or len(label) > column - 4:
            indent = 6 if self.width < _NARROW else column
            return f"  {label}\n{self.wrap(text, indent)}" if text else f"  {label}"
        return self.wrap(text, column, f"  {label}".ljust(column)).rstrip()


def start_page(commands: Mapping[str, App], layout: Layout) -> str:
    """That of `trillm` itself."""
    rows = [layout.row(name, _summary(app), 14) for name, app in commands.items()]
    head = _START if layout.width >= _NARROW else _narrowed(_START)
    return "\n".join([head + layout.bold("Commands:"), *rows, "", layout.wrap(_END)])


def command_page(name: str, app: App, topic: str, layout: Layout) -> str:
    """That of one command, about `topic` (see HelpWanted). Raises BadRequestError if there is no such group or flag."""
    flags = flag_texts(app)
    shown = [flag for flag in flags if flag.is_shown]
    if not topic and name in EVERYDAY:
        return "\n".join(_short_page(name, app, shown, layout))
    if topic in ("", "all", "page"):
        return "\n".join([*_head(name, app, shown, layout), *_groups(shown, layout)]).rstrip()
    if topic == "listgroup":
        return "\n".join(_list_of_groups(name, shown, layout))
    return "\n".join(_groups(_about(name, topic, flags), layout)).rstrip()


def _short_page(name: str, app: App, flags: list[FlagText], layout: Layout) -> Iterator[str]:
    yield from _head(name, app, flags, layout, is_short=True)
    yield layout.bold("What is set most often:")
    for wanted, text in EVERYDAY[name].items():
        flag = next(flag for flag in flags if wanted in flag.plain_names)
        metavar = "TEXT" if flag.metavar.startswith("{") else flag.metavar
        yield layout.row(f"{wanted} {metavar}".rstrip(), text)
    named = [flag for flag in flags if not flag.is_argument]
    groups = ", ".join(keyword(group) for group in dict.fromkeys(flag.group for flag in named))
    yield ""
    yield layout.wrap(
        f"All {len(named)} flags: --help=all. Those of a group: --help=GROUP, which is one of {groups}. Those with a "
        f"word in their name: --help=WORD, as `trillm {name} --help=cache`."
    )


def keyword(group: str) -> str:
    """What --help= calls a group: the first word of its name, or of what stands in brackets."""
    found = re.search(r"\((\w+)", group) or re.match(r"(\w+)", group)
    assert found is not None, group
    return found[1].lower()


def _about(name: str, topic: str, flags: list[FlagText]) -> list[FlagText]:
    wanted = topic.lower().lstrip("-").replace("_", "-")
    of_group = [flag for flag in flags if flag.is_shown and wanted in (flag.group.lower(), keyword(flag.group))]
    if of_group:
        return of_group
    called = [[alias.lstrip("-").lower() for alias in flag.plain_names] for flag in flags]
    for fits in (lambda alias: alias == wanted, lambda alias: wanted in alias):
        if found := [flag for flag, names in zip(flags, called, strict=True) if any(map(fits, names))]:
            return found
    near = get_close_matches(wanted, [alias for names in called for alias in names], 1, cutoff=0.6)
    guess = f"; did you mean --help={near[0]}?" if near else f": see `trillm {name} --help=listgroup`"
    raise BadRequestError(f"no group or flag of {name} has {topic[:60]!r} in its name{guess}")


def _head(name: str, app: App, flags: list[FlagText], layout: Layout, is_short: bool = False) -> Iterator[str]:
    arguments = [flag.label if flag.is_needed else f"[{flag.label}]" for flag in flags if flag.is_argument]
    yield " ".join([layout.bold("Usage:"), "trillm", name, *arguments, "[FLAGS]"])
    yield ""
    for paragraph in _paragraphs(app):
        if is_short and paragraph.startswith("Exit status"):
            continue
        if paragraph.startswith("    "):
            yield paragraph.replace("    ", "  ", 1).replace("\n    ", "\n  ")
        else:
            yield layout.wrap(paragraph)
        yield ""
    if told := [flag for flag in flags if flag.is_argument and flag.text]:
        yield from (layout.row(flag.label, flag.text) for flag in told)
        yield ""


def _groups(flags: list[FlagText], layout: Layout) -> Iterator[str]:
    named = [flag for flag in flags if not flag.is_argument]
    for group in dict.fromkeys(flag.group for flag in named):
        yield layout.bold(f"{group}:")
        yield from (layout.row(flag.label, flag.whole) for flag in named if flag.group == group)
        yield ""


def _list_of_groups(name: str, flags: list[FlagText], layout: Layout) -> Iterator[str]:
    named = [flag for flag in flags if not flag.is_argument]
    yield layout.bold(f"The {len(named)} flags, by group:")
    for group in dict.fromkeys(flag.group for flag in named):
        number = sum(flag.group == group for flag in named)
        yield layout.row(f"--help={keyword(group)}", f"{group} ({number})")
    yield layout.row("--help=all, --help=page", "everything; in a pager")
    yield layout.row("--help=WORD", f"flags with WORD in their name, as `trillm {name} --help=cache`")


def _summary(app: App) -> str:
    return next(iter(_paragraphs(app)), "").split(". ")[0].rstrip(".")


def _paragraphs(app: App) -> list[str]:
    """Of the command's docstring, as far as its parameters. Indented lines are examples, and stay as they are."""
    text = inspect.getdoc(app.default_command) or ""
    text = re.split(r"\n+Parameters\n-{3,}\n", text, maxsplit=1)[0]
    parts = [part.rstrip() for part in text.split("\n\n") if part.strip()]
    return [part if part.startswith("    ") else " ".join(part.split()) for part in parts]


def _narrowed(text: str) -> str:
    """Each example's remark goes below it."""
    return re.sub(r"^(  trillm .*?) {3,}(.*)$", r"\1\n      \2", text, flags=re.MULTILINE)
