"""What ranks do with their shared memory is in an order that any processor keeps, and within the memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu.kernels import build

FLAGS = [flag for flag in build.FLAGS if flag not in ("-shared", "-fPIC", "-O3")]


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_ranks_find_no_race_and_stay_within_their_memory(tmp_path, sanitizer):
    compiler, options = build._find_compiler(), [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    probe, source, program = tmp_path / "probe.cpp", Path(__file__).with_name("shared_ranks.cpp"), tmp_path / "program"
    probe.write_text("int main() {}")
    if subprocess.run([compiler, *options, str(probe), "-o", str(program)], check=False).returncode:
        pytest.skip(f"{compiler} has no {sanitizer} sanitizer here")
    built = [compiler, *FLAGS, "-O1", *options, f"-I{build.SOURCE}", str(source), "-o", str(program)]
    subprocess.run(built, check=True, timeout=120)
    done = subprocess.run([str(program)], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]
