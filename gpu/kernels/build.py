"""Builds the kernels with the system's C++ compiler, once per source, compiler and processor. Used by library.

A built library lies in the cache directory under a name that says what it was built from: another processor, as in a
home directory that machines share, or another version of the source gets its own.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gpu.kernels.scratch import open_scratch

SOURCE = Path(__file__).parent / "src"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-ffp-contract=off",  # a fused multiply-add only where the source says so: results must not depend on the compiler
    "-fno-math-errno",
    "-fPIC",
    "-shared",
    "-pthread",
)
TIMEOUT_SECONDS = 300.0
NO_ROOM = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
"""What a compiler says of it that cannot write its result."""

logger = logging.getLogger("trillm.kernels")


class BuildError(Exception):
    """The kernels cannot be built here; the text says why in one line."""


class CacheError(BuildError):
    """They may be built elsewhere: this directory cannot be written, or what lies there is not to be trusted."""


def built_library(cache_directory: Path, options: Sequence[str] = ()) -> Path:
    """The shared library in the cache, built first if it is not there. `options` are for the compiler, after FLAGS.

    Raises BuildError without a compiler or if it fails, and CacheError if the cache cannot be written, or if what is
    there may be somebody else's work.
    """
    compiler = _find_compiler()
    options = (*FLAGS, *options)
    library = _library(cache_directory, compiler, options)
    if library.exists():
        if not _is_ours(library):
            raise CacheError(f"{library} is another user's, or everybody's to write: it is not loaded")
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with open_scratch(library.parent) as scratch:
            made = scratch / library.name
            logger.info("building the CPU kernels with %s (once; some seconds)", compiler)
            _compile(compiler, options, made)
            made.replace(library)
    except OSError as error:
        raise CacheError(f"{library.parent} cannot be written: {error.strerror or error}") from error
    return library


def find_library(cache_directory: Path) -> Path | None:
    """The library in the cache, if it has been built."""
    try:
        library = _library(cache_directory, _find_compiler(), FLAGS)
    except (BuildError, OSError):
        return None
    return library if library.exists() and _is_ours(library) else None


def find_compiler() -> str | None:
    """The path of the compiler that would build them."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def compiler_trouble() -> str | None:
    """Why they could not be built here, in one line; None if a program with their headers compiles. Takes a second."""
    trial = "#include <cstdint>\n#include <thread>\n#include <vector>\nint main() { return 0; }\n"
    try:
        command = [_find_compiler(), "-std=c++20", "-march=native", "-fsyntax-only", "-x", "c++", "-"]
        done = subprocess.run(command, input=trial, capture_output=True, text=True, timeout=30, check=False)
    except (BuildError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if "error" in line] or [f"status {done.returncode}"]
    return f"{command[0]} cannot compile C++20: {errors[0]}"


def _is_ours(library: Path) -> bool:
    """Whether nobody but us and root can have written what we are about to run."""
    status = library.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & stat.S_IWOTH


def _library(cache_directory: Path, compiler: str, options: Sequence[str]) -> Path:
    return cache_directory / "kernels" / f"{_key(compiler, options)}.so"


def _find_compiler() -> str:
    if path := find_compiler():
        return path
    raise BuildError(f"no C++ compiler is installed (none of {', '.join(COMPILERS)})")


def _compile(compiler: str, options: Sequence[str], output: Path) -> None:
    command = [compiler, *options, str(SOURCE / "program.cpp"), "-o", str(output)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            env=os.environ | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{compiler} took more than {TIMEOUT_SECONDS:.0f} s") from error
    if done.returncode != 0:
        if any(reason in done.stderr for reason in NO_ROOM):
            raise CacheError(f"{output.parent} is full")
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"{compiler} failed: {errors[0] if errors else f'status {done.returncode}'}")


def _key(compiler: str, options: Sequence[str]) -> str:
    """What the result depends on, hashed."""
    status = Path(compiler).stat()
    parts = [platform.machine(), _cpu_flags(), os.path.realpath(compiler), str(status.st_mtime_ns), *options]
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in sorted(SOURCE.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:20]


def _cpu_flags() -> str:
    """The processor's instruction sets, which -march=native goes by."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    for line in cpuinfo.read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return line
    return platform.processor()
