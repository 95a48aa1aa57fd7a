"""scripts/gpu_check goes through on a CPU with a tiny model, and says in a sentence where there is no GPU."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from gpu import block_copies
from gpu.varlen_attention import KvAccess
from protocol.parallel import ParallelSpec
from scripts.gpu_checks.__main__ import check
from scripts.gpu_checks.block_copies import check_block_copies
from scripts.gpu_checks.numerics import CPU, Finding
from scripts.gpu_checks.random_checkpoint import write_checkpoint
from scripts.gpu_checks.random_model import SMALL, TINY
from scripts.gpu_checks.restarts import check_restarts
from scripts.gpu_checks.task_process import conform
from scripts.gpu_checks.worlds import groups_of, layouts_of, model_over, spec_of


def test_what_one_process_computes_is_checked_on_a_tiny_model(tmp_path, capsys):
    torch.set_num_threads(1)
    result = tmp_path / "result.json"

    assert check(device="cpu", tiny=True, only=("numerics", "steps"), output=result) == 0

    found = json.loads(result.read_text())
    names = {one["name"] for one in found["findings"]}
    assert names >= {"linear", "norm", "rotation", "attention, gather", "model", "sampling noise", "sampled tokens"}
    assert names >= {"graph and no graph, 5 rows", "graph and no graph, 3 rows", "batch-invariant logits"}
    assert names >= {f"attention, varlen, {access}" for access in KvAccess}
    assert names >= {"attention, flashinfer", "fp8 cache", "compiled and plain parts", "steps started ahead"}
    assert "adapters together and alone" in names
    assert [(one["batch"], one["graphs"]) for one in found["steps"]] == [(1, True), (3, True), (1, False), (3, False)]
    assert all(one["seconds"] > 0 and one["roofline_seconds"] > 0 for one in found["steps"])
    assert "WRONG" not in capsys.readouterr().out


def test_blocks_are_copied_to_frames_and_back(capsys):
    assert check(device="cpu", tiny=True, only=("copies",)) == 0
    assert capsys.readouterr().out.count("right") == 3


def test_a_block_that_comes_back_as_another_is_found(monkeypatch):
    def save_only(pool, saves, loads, frames):
        block_copies.copy_blocks(pool, saves, [], frames)

    monkeypatch.setattr("scripts.gpu_checks.block_copies.copy_blocks", save_only)
    found = {one.name: one.is_right for one in check_block_copies(TINY, torch.float32, CPU)}
    assert found == {"blocks in frames": True, "… and in other blocks": False, "… and where they were": True}


@pytest.mark.process
def test_tensors_are_checked_in_other_processes(capsys):
    assert check(device="cpu", tiny=True, only=("tensors",)) == 0
    assert capsys.readouterr().out.count("right\n") == 3


@pytest.mark.process
def test_ranks_are_held_to_what_each_call_gives_and_to_one_rank(tmp_path):
    checkpoint = write_checkpoint(tmp_path, TINY, torch.float32)
    alone = spec_of(checkpoint, CPU, torch.float32, ParallelSpec(), tmp_path / "alone")
    assert set(conform(alone, 0).digests) == {"world", "tensor", "pipeline", "control"}
    for number, check_one in enumerate((groups_of, partial(model_over, limit=1e-4))):
        finding = check_one(spec_of(checkpoint, CPU, torch.float32, ParallelSpec(2), tmp_path / str(number)))
        assert finding.is_right, finding


@pytest.mark.process
def test_a_rank_that_cannot_go_on_is_said_to_be_wrong_at_once(tmp_path):
    spec = spec_of(tmp_path / "nowhere", CPU, torch.float32, ParallelSpec(2), tmp_path / "place")
    finding = model_over(spec, 1e-4)
    assert not finding.is_right
    assert "nowhere" in finding.remark


@pytest.mark.process
def test_an_engine_is_killed_and_its_answer_held_to_the_undisturbed_one(tmp_path):
    (finding,) = check_restarts(write_checkpoint(tmp_path, TINY, torch.float32), CPU, ParallelSpec())
    assert finding.name == "an answer while engine-0 is killed"
    assert finding.is_right, finding
    assert finding.remark.startswith("the same tokens, after ")


@pytest.mark.parametrize(("ranks", "layouts"), [(1, []), (2, [(2, 1), (1, 2)]), (3, [(2, 1), (1, 2)])])
def test_as_many_ranks_compute_as_there_are_and_as_the_heads_allow(ranks, layouts):
    assert [(one.tensor, one.pipeline) for one in layouts_of(TINY, ranks)] == layouts


def test_eight_gpus_are_all_used():
    assert [(one.tensor, one.pipeline) for one in layouts_of(SMALL, 8)] == [(8, 1), (1, 2), (2, 2)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert check() == 1
    assert capsys.readouterr().err == "There is nothing to check: torch sees no CUDA device.\n"


def test_what_is_not_near_enough_is_not_right():
    assert Finding("linear", 0.01, 0.02).is_right
    assert not Finding("linear", 0.03, 0.02).is_right
    assert not Finding("linear", float("nan"), 0.02).is_right
    assert not Finding("linear, fp8", None, 0.02).is_right
