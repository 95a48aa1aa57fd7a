"""The path for 64-bit ARM computes what plain C++ computes, to the last bit: cross-compiled and emulated.

On such a processor the other tests here compare the two; this one is for those who change the path without one.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpu.kernels import build

CROSS_COMPILER = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
PLAIN = "-DTRILLM_PLAIN_LANES=8"
FLAGS = [flag for flag in build.FLAGS if flag not in ("-march=native", "-shared", "-fPIC", "-O3")]

needs_emulation = pytest.mark.skipif(
    CROSS_COMPILER is None or EMULATOR is None,
    reason="needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu and qemu-user)",
)


def built(compiler: str, output: Path, *options: str) -> str:
    """every_operation.cpp as a program; barely optimised, since that takes the compiler a third of the time."""
    source = Path(__file__).with_name("every_operation.cpp")
    command = [compiler, *FLAGS, "-O1", "-static", f"-I{build.SOURCE}", *options, str(source), "-o", str(output)]
    subprocess.run(command, check=True)
    return str(output)


def printed(*command: str) -> list[str]:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


@pytest.fixture(scope="module")
def plain_results(tmp_path_factory) -> list[str]:
    """What plain C++ gives on this processor."""
    return printed(built(build._find_compiler(), tmp_path_factory.mktemp("plain") / "program", PLAIN))


@needs_emulation
@pytest.mark.parametrize(
    ("processor", "options"),
    [("neoverse-n1", []), ("cortex-a53", []), ("cortex-a53", [PLAIN])],
    ids=["with dot products", "without dot products", "plain"],
)
def test_an_arm_processor_computes_what_plain_code_computes_here(processor, options, plain_results, tmp_path):
    assert CROSS_COMPILER is not None
    assert EMULATOR is not None
    program = built(CROSS_COMPILER, tmp_path / "program", f"-mcpu={processor}", *options)
    assert printed(EMULATOR, "-cpu", processor, program) == plain_results


@needs_emulation
@pytest.mark.parametrize("processor", ["neoverse-n1", "cortex-a53"])
def test_the_sources_compile_without_warnings(processor):
    assert CROSS_COMPILER is not None
    command = [CROSS_COMPILER, "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    subprocess.run([*command, f"-mcpu={processor}", str(build.SOURCE / "program.cpp")], check=True)
