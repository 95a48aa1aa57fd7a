"""Asks a process that loads torch, which this one does not. Used by app/commands/check.py."""

from __future__ import annotations

import sys

import msgspec
import trio

from protocol.errors import StartError
from protocol.machine import ProbeAsked, Probed

COMMAND = (sys.executable, "-P", "-m", "gpu.probe")
SECONDS = 120.0
"""torch takes some seconds to load, and a minute from a slow disk."""


async def probe(asked: ProbeAsked, command: tuple[str, ...] = COMMAND) -> Probed:
    """Raises StartError with the last thing that it said if it does not answer."""
    with trio.move_on_after(SECONDS):
        told = msgspec.json.encode(asked)
        done = await trio.run_process(command, stdin=told, capture_stdout=True, capture_stderr=True, check=False)
        try:
            return msgspec.json.decode(done.stdout, type=Probed)
        except msgspec.DecodeError as error:
            last = done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"]
            raise StartError(f"torch cannot be loaded: {last[-1]}") from error
    raise StartError(f"torch was not loaded within {SECONDS:.0f} s")
