"""Where the peers are on this machine, and which versions they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

Peer = Literal["llama.cpp", "vllm", "none"]
PEERS: tuple[Peer, ...] = ("llama.cpp", "vllm")
VERSION_SECONDS = 60.0
HOME = Path(__file__).parents[3]


class MissingPeerError(Exception):
    """A peer is not here. The text says where it was looked for."""


def find_llama_cpp(given: Path | None, environment: Mapping[str, str]) -> Path:
    """llama-server: what is given, else LLAMA_SERVER, else the one in PATH. Raises MissingPeerError."""
    return _find(given, environment, "LLAMA_SERVER", "llama-server", "--llama-cpp")


def find_vllm(given: Path | None, environment: Mapping[str, str]) -> Path:
    """The python of vLLM's environment: what is given, else VLLM_PYTHON, else the one beside `vllm` in PATH. Raises
    MissingPeerError."""
    found = _find(given, environment, "VLLM_PYTHON", "vllm", "--vllm")
    if found.name != "vllm":
        return found
    python = found.parent / "python"
    if not os.access(python, os.X_OK):
        raise MissingPeerError(f"vllm is in PATH, but there is no python beside it that could be started: {found}")
    return python


def _find(given: Path | None, environment: Mapping[str, str], variable: str, program: str, flag: str) -> Path:
    if given is None and environment.get(variable):
        given, flag = Path(environment[variable]), variable
    if given is not None:
        if not os.access(given, os.X_OK) or given.is_dir():
            raise MissingPeerError(f"{flag} names {given}, which is no program that can be started")
        return given.absolute()  # and not what it links to: a virtual environment's python is a link
    if (found := shutil.which(program, path=environment.get("PATH"))) is None:
        raise MissingPeerError(f"no {flag}, no {variable}, and no {program} in PATH")
    return Path(found).absolute()


def llama_cpp_version(binary: Path) -> str:
    """As it calls itself: number and commit."""
    output = _output([str(binary), "--version"])
    found = re.search(r"version: (\S+).*?(?:commit )?\(?\b([0-9a-f]{7,})\b", output)
    return f"{found[1]} ({found[2]})" if found else "of an unknown version"


def vllm_version(python: Path) -> str:
    output = _output([str(python), "-c", "import importlib.metadata as m; print('version:', m.version('vllm'))"])
    found = re.search(r"^version: (\S+)$", output, re.MULTILINE)
    return found[1] if found else "of an unknown version"


def trillm_version() -> str:
    """With the commit of this checkout, and whether something was changed since, where git knows."""
    try:
        number = version("trillm")
    except PackageNotFoundError:
        number = "not installed"
    commit = _output(["git", "-C", str(HOME), "describe", "--always", "--dirty", "--exclude=*"]).strip()
    return f"{number} ({commit})" if re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", commit) else number


def _output(command: Sequence[str]) -> str:
    """Of both kinds; empty if it could not be started or took too long."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
