"""The servers under test with one model: how each is started, warm and cold, and in which form it has the weights."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from app.checkpoints.resolve import Checkpoint
from app.settings import default_cache_directory
from scripts.benchmark import servers
from scripts.benchmark.compare.peers import llama_cpp_version, trillm_version, vllm_version
from scripts.benchmark.compare.results import ServerResults
from scripts.benchmark.conditions import the_checkpoint
from scripts.benchmark.processes import Server


@attrs.frozen
class Contender:
    """A server under test with one model."""

    server: Server
    version: str
    weights: str
    """In which form it has the model."""
    files: Sequence[Path]
    """What it reads at start: files, and directories of them."""
    first: Server
    """As it is started when nothing was cached by an earlier start."""
    caches: Sequence[str] = ()
    """Environment variables that name the directory in which it caches things."""

    def results(self) -> ServerResults:
        command = [_without_directory(part) for part in self.server.command]
        environment = {
            name: ":".join(map(_without_directory, value.split(":")))
            for name, value in self.server.environment.items()
            if value
        }
        return ServerResults(self.server.name, self.version, self.weights, command, environment)


@attrs.frozen
class Arguments:
    """More flags for each server, each as one text, as in a shell."""

    trillm: str = ""
    llama_cpp: str = ""
    vllm: str = ""


def contenders(
    model: str | None, llama_cpp: Path | None, vllm: Path | None, slots: int, arguments: Arguments
) -> tuple[Checkpoint, list[Contender], dict[str, str]]:
    """The model's checkpoint, the servers that can have it, trillm first, and why others cannot."""
    checkpoint = the_checkpoint(model)
    gguf = servers.gguf_file(checkpoint.directory)
    found, excluded = [_trillm(model, checkpoint, gguf, shlex.split(arguments.trillm))], {}
    if llama_cpp is not None and gguf is None:
        excluded["llama.cpp"] = f"{checkpoint.name} does not come from a GGUF file, and it reads nothing else"
    elif llama_cpp is not None and gguf is not None:
        found.append(_llama_cpp(llama_cpp, gguf, checkpoint.name, slots, shlex.split(arguments.llama_cpp)))
    if vllm is not None:
        found.append(_vllm(vllm, checkpoint, gguf, slots, shlex.split(arguments.vllm)))
    return checkpoint, found, excluded


def _trillm(model: str | None, checkpoint: Checkpoint, gguf: Path | None, arguments: Sequence[str]) -> Contender:
    server = servers.trillm(model, checkpoint.name, arguments)
    origin = gguf or checkpoint.directory
    return Contender(
        server,
        trillm_version(),
        gguf.name if gguf else "its own files",
        [origin, Path(sys.prefix)],
        # By its path: with an empty cache the default model would be fetched again.
        first=servers.trillm(str(origin), checkpoint.name, arguments),
        caches=["XDG_CACHE_HOME"],
    )


def _llama_cpp(binary: Path, gguf: Path, name: str, slots: int, arguments: Sequence[str]) -> Contender:
    server = servers.llama_cpp(binary, gguf, name, slots, arguments)
    return Contender(server, llama_cpp_version(binary), gguf.name, [gguf, binary], first=server)


def _vllm(python: Path, checkpoint: Checkpoint, gguf: Path | None, slots: int, arguments: Sequence[str]) -> Contender:
    directory = float32_directory(checkpoint)
    server = servers.vllm(python, directory, slots, arguments)
    weights = "the same weights in float32" if gguf else "its own files, computed in float32"
    files = [directory, python.parent.parent]
    return Contender(server, vllm_version(python), weights, files, first=server, caches=["VLLM_CACHE_ROOT"])


def float32_directory(checkpoint: Checkpoint) -> Path:
    """The model for servers that read no GGUF, expanded once and kept in the cache."""
    if servers.gguf_file(checkpoint.directory) is None:
        return checkpoint.directory
    directory = default_cache_directory() / "benchmark" / f"{checkpoint.directory.name}-float32"
    if not (directory / "config.json").is_file():
        print(f"expanding {checkpoint.name} to float32 for vLLM, once …", file=sys.stderr)
        command = [sys.executable, "-m", "scripts.benchmark.export_float32", str(checkpoint.directory), str(directory)]
        subprocess.run(command, check=True)
    return directory


def _without_directory(part: str) -> str:
    """Commands are shown to others: of a path its last part."""
    if part == sys.executable:
        return "python"
    return Path(part).name if part.startswith("/") else part
