"""The other process of a measurement: a module that is run with one argument, a job in JSON, and says one line of JSON
once it can be used, or what it has found. Used by scripts/benchmark/kv."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from actors.process import PASSIVE_WAITING
from scripts.benchmark.processes import ServerFailedError

HOME = Path(__file__).parents[3]
SECONDS = 60.0

Said = TypeVar("Said")


@contextlib.contextmanager
def open_child(module: str, job: msgspec.Struct, says: type[Said], seconds: float = SECONDS) -> Iterator[Said]:
    """What it said; killed when this is left. Raises ServerFailedError if it has said nothing after so many seconds."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, msgspec.json.encode(job).decode()],
        cwd=HOME,
        env=PASSIVE_WAITING | os.environ | {"PYTHONPATH": str(HOME)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        # It writes the line at once, so that whoever sees its beginning gets the rest.
        readable, _, _ = select.select([process.stdout], [], [], seconds)
        line = process.stdout.readline() if readable else b""
        if not line.endswith(b"\n"):
            raise ServerFailedError(f"{module} said nothing within {seconds:.0f} s")
        yield msgspec.json.decode(line, type=says)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def say(what: object) -> None:
    """In the child."""
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()
