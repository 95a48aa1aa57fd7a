"""Building: once, next to nothing the second time, and a reason where it cannot be done."""

from __future__ import annotations

import logging
import os
import platform
import subprocess

import pytest

from gpu.kernels import build
from gpu.kernels.build import BuildError, CacheError, built_library, find_library
from gpu.kernels.library import open_library


@pytest.fixture
def quick_source(tmp_path, monkeypatch):
    """A source that compiles in no time, and a list of the commands that were run."""
    source = tmp_path / "src"
    source.mkdir()
    (source / "program.cpp").write_text('extern "C" int trillm_lanes() { return 8; }')
    monkeypatch.setattr(build, "SOURCE", source)
    return source


def test_it_is_built_once_and_again_when_the_source_changes(quick_source, tmp_path):
    first = built_library(tmp_path / "cache")
    made = first.stat().st_mtime_ns
    assert built_library(tmp_path / "cache") == first
    assert first.stat().st_mtime_ns == made
    (quick_source / "program.cpp").write_text('extern "C" int trillm_lanes() { return 4; }')
    assert built_library(tmp_path / "cache") != first


def test_nothing_else_is_left_in_the_cache(quick_source, tmp_path):
    library = built_library(tmp_path / "cache")
    assert list(library.parent.iterdir()) == [library]


def test_an_error_of_the_compiler_is_told(quick_source, tmp_path):
    (quick_source / "program.cpp").write_text("#error this will not do")
    with pytest.raises(BuildError, match=r"failed: .*this will not do"):
        built_library(tmp_path / "cache")


def test_without_a_compiler_there_are_no_kernels_and_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert open_library(tmp_path / "cache") is None
    assert [record.message for record in caplog.records] == [
        "no CPU kernels, torch computes instead, which is several times slower: "
        "no C++ compiler is installed (none of c++, g++, clang++)"
    ]


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path, monkeypatch, caplog):
    (tmp_path / "cache").write_text("a file where a directory should be")
    real = build._compile
    monkeypatch.setattr(build, "_compile", lambda compiler, options, output: real(compiler, (*options, "-O0"), output))
    with caplog.at_level(logging.WARNING):
        library = open_library(tmp_path / "cache")
    assert library is not None
    assert library.lanes in (8, 16)
    assert "built again at each start" in caplog.text


def test_a_library_that_cannot_be_loaded_is_told(quick_source, tmp_path, caplog):
    built_library(tmp_path / "cache").write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING):
        assert open_library(tmp_path / "cache") is None
    assert "no CPU kernels" in caplog.text


def test_the_sources_compile_without_warnings_for_older_processors(tmp_path):
    """AVX2 without AVX-512 (or NEON without dot products), and no vector instructions at all."""
    compiler = build._find_compiler()
    older = ["-mavx2", "-mfma", "-mf16c"] if platform.machine() == "x86_64" else []
    for target in (older, ["-DTRILLM_PLAIN_LANES=8"]):
        command = [compiler, "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *target]
        subprocess.run([*command, str(build.SOURCE / "program.cpp")], check=True, capture_output=True)


def test_what_others_may_have_written_is_not_run(quick_source, tmp_path):
    library = built_library(tmp_path / "cache")
    assert find_library(tmp_path / "cache") == library
    library.chmod(0o777)

    assert find_library(tmp_path / "cache") is None
    with pytest.raises(CacheError, match="it is not loaded"):
        built_library(tmp_path / "cache")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_another_user_s_library_is_not_run(quick_source, tmp_path):
    os.chown(built_library(tmp_path / "cache"), 12345, 12345)

    assert find_library(tmp_path / "cache") is None
