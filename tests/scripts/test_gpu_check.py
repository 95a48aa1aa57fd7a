"""scripts/gpu_check goes through on a CPU with a tiny model, and says in a sentence where there is no GPU."""

from __future__ import annotations

import json

import pytest
import torch

from gpu.varlen_attention import KvAccess
from scripts.gpu_checks.__main__ import check
from scripts.gpu_checks.numerics import Finding


def test_the_whole_check_goes_through_on_a_tiny_model(tmp_path, capsys):
    torch.set_num_threads(1)
    result = tmp_path / "result.json"

    assert check(device="cpu", tiny=True, output=result) == 0

    found = json.loads(result.read_text())
    names = {one["name"] for one in found["numerics"]}
    assert names >= {"linear", "norm", "rotation", "attention, gather", "model", "sampling noise", "sampled tokens"}
    assert names >= {"graph and no graph, 5 rows", "graph and no graph, 3 rows", "batch-invariant logits"}
    assert names >= {f"attention, varlen, {access}" for access in KvAccess}
    assert names >= {"attention, flashinfer", "fp8 cache", "compiled and plain parts", "steps started ahead"}
    assert "adapters together and alone" in names
    assert [(one["batch"], one["graphs"]) for one in found["steps"]] == [(1, True), (3, True), (1, False), (3, False)]
    assert all(one["seconds"] > 0 and one["roofline_seconds"] > 0 for one in found["steps"])
    assert "WRONG" not in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert check() == 1
    assert capsys.readouterr().err == "There is nothing to check: torch sees no CUDA device.\n"


def test_what_is_not_near_enough_is_not_right():
    assert Finding("linear", 0.01, 0.02).is_right
    assert not Finding("linear", 0.03, 0.02).is_right
    assert not Finding("linear", float("nan"), 0.02).is_right
    assert not Finding("linear, fp8", None, 0.02).is_right
