"""No kernel reads or writes beyond its memory, and none computes what C++ leaves undefined."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu.kernels import build

FLAGS = [flag for flag in build.FLAGS if flag not in ("-shared", "-fPIC", "-O3")]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def test_every_operation_stays_within_its_memory(tmp_path):
    """With this processor's vectors, in the program that runs every operation in every format."""
    compiler = build._find_compiler()
    probe = tmp_path / "probe.cpp"
    probe.write_text("int main() {}")
    if subprocess.run([compiler, *SANITIZERS, str(probe), "-o", str(tmp_path / "probe")], check=False).returncode:
        pytest.skip(f"{compiler} has no address sanitizer here")
    source, program = Path(__file__).with_name("every_operation.cpp"), tmp_path / "program"
    command = [
        compiler,
        *FLAGS,
        "-O1",
        *SANITIZERS,
        "-DTRILLM_ANY_LANES",
        f"-I{build.SOURCE}",
        str(source),
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True)
    done = subprocess.run([str(program)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
