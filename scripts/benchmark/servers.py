"""How each server is started for the comparison: the same model, every core, loopback, no log of requests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.benchmark.processes import Server

CONTEXT = 2048
"""Tokens of one request."""
SLOT_TOKENS = 1024
"""Room in llama.cpp's KV cache for each request that it can run at once."""


def trillm(model: str | None, name: str, arguments: Sequence[str]) -> Server:
    """This checkout, with its own defaults."""
    command = [sys.executable, "-m", "app.cli", "serve", *([model] if model else []), "--port", "{port}", *arguments]
    return Server("trillm", command, name, "/ready", {"TRILLM_LOG_LEVEL": "warning"})


def llama_cpp(binary: Path, gguf: Path, name: str, slots: int, arguments: Sequence[str]) -> Server:
    """llama.cpp's own server. Its slots share one KV cache, large enough for all streams that are measured."""
    threads = str(len(os.sched_getaffinity(0)))
    command = [str(binary), "-m", str(gguf), "-t", threads, "-tb", threads, "--host", "127.0.0.1", "--port", "{port}"]
    command += ["-np", str(slots), "-c", str(slots * SLOT_TOKENS), "--kv-unified", "--no-webui", *arguments]
    return Server("llama.cpp", command, name, "/health")


def vllm(python: Path, directory: Path, slots: int, arguments: Sequence[str]) -> Server:
    """vLLM on a CPU. By default it keeps one core for its API server, which costs it half of two."""
    command = [str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(directory), "--host", "127.0.0.1"]
    command += ["--port", "{port}", "--dtype", "float32", "--max-model-len", str(CONTEXT)]
    command += ["--max-num-seqs", str(slots), "--disable-uvicorn-access-log", *arguments]
    cores = sorted(os.sched_getaffinity(0))
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}-{cores[-1]}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "LD_PRELOAD": ":".join(map(str, preloads(python))),
    }
    environment = {name: os.environ.get(name, value) for name, value in environment.items()}
    return Server("vLLM", command, str(directory), "/health", environment, start_seconds=600.0)


def preloads(python: Path) -> list[Path]:
    """What vLLM wants loaded first on a CPU, as far as it is there."""
    prefix = python.parent.parent
    places = [(Path("/usr/lib"), "**/libtcmalloc_minimal.so.4"), (prefix / "lib", "**/libiomp5.so")]
    return [found for folder, pattern in places for found in sorted(folder.glob(pattern))[:1]]


def gguf_file(checkpoint: Path) -> Path | None:
    """The file behind a checkpoint that was made from one."""
    index = checkpoint / "gguf.json"
    return Path(json.loads(index.read_text())["file"]) if index.is_file() else None
