"""A process that loads torch tells what it sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from gpu.kernels import build
from gpu.probe import probe
from protocol.ids import EngineIndex, Epoch
from protocol.machine import ProbeAsked
from protocol.spec import EngineSpec


def test_without_a_model_it_tells_of_the_machine(tmp_path: Path):
    probed = probe(ProbeAsked(str(tmp_path), None))
    assert probed.torch == torch.__version__
    assert len(probed.cards) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert not probed.kernels.is_built
    assert bool(probed.kernels.trouble) == (build.compiler_trouble() is not None)
    assert (probed.fit, probed.trouble) == (None, "")


def test_what_is_wrong_with_a_model_is_a_sentence(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"architectures": ["FooForCausalLM"]}')
    probed = probe(ProbeAsked(str(tmp_path), EngineSpec(EngineIndex(0), Epoch(0), "", {}, str(tmp_path), device="cpu")))
    assert probed.is_unknown
    assert "FooForCausalLM" in probed.trouble


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        (None, r"^no C\+\+ compiler is installed"),
        ("echo 'stdin:1: fatal error: thread: no such file' >&2; exit 1", "cannot compile C.*fatal error: thread"),
        ("exit 3", r"status 3$"),
    ],
)
def test_a_compiler_that_is_not_there_or_not_whole_is_told(tmp_path: Path, monkeypatch, script, trouble):
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere")
    if script is not None:
        (tmp_path / "c++").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "c++").chmod(0o755)
    told = build.compiler_trouble()
    assert told is not None
    assert re.search(trouble, told), told
