"""README and the pages of app/guide, as their readers use them: fenced blocks, and the commands in these."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "app" / "guide"
FENCE = re.compile(r"^```(\S*)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SERVES = re.compile(r"^(?:scripts/serve|\S*bin/trillm (?:serve|proxy)|\S*bin/hypercorn)(?: |$)")
PORT = re.compile(r"(?:--port[ =]|--bind \S+:)(\d+)")


@attrs.frozen
class Block:
    """What stands between two fences."""

    language: str
    """sh is run, python too; toml and json are read; text is what something prints."""
    label: str
    """After `python` the name of the file that it is; after `sh` "elsewhere": not to be run on a machine that has
    neither the network nor the service manager that it speaks of."""
    text: str


@attrs.frozen
class Step:
    """Commands of a block that belong together: one that serves until it is stopped, or others."""

    script: str
    is_server: bool

    @property
    def port(self) -> int:
        """Where it serves."""
        found = PORT.search(self.script)
        return int(found[1]) if found else 8000

    @property
    def waits_for_another(self) -> bool:
        """It only computes for a server on another host."""
        return re.search(r"--node-rank [1-9]", self.script) is not None


def blocks(page: Path) -> list[Block]:
    return [Block(language, label, text) for language, label, text in FENCE.findall(page.read_text())]


def steps(script: str) -> Iterator[Step]:
    """Of a block for a shell."""
    others: list[str] = []
    lines = iter(script.splitlines())
    for line in lines:
        if SERVES.match(line) is None:
            others.append(line)
            continue
        if others:
            yield Step("\n".join(others), is_server=False)
            others = []
        while line.endswith("\\"):
            line += "\n" + next(lines)
        yield Step(line, is_server=True)
    if others:
        yield Step("\n".join(others), is_server=False)
