"""The GPU path with stand-ins for the kernel and the recording: the model's tokens, and what is left out when it must.

That torch's own kernel and graphs do the same on a GPU is not shown here: scripts/gpu_check is for that.
"""

from __future__ import annotations

import pytest
import torch

from gpu.torch_runner import TorchRunner
from protocol.errors import StartError
from protocol.ids import Slot
from protocol.step import Row
from scripts.gpu_checks.without_gpu import varlen_attention
from tests.helpers.runner_conformance import check_runner
from tests.helpers.stand_in_device import Recorder, device_facts, device_model, without_pages
from tests.helpers.tiny_checkpoints import make_checkpoint


@pytest.fixture(scope="module", params=["mistral_sliding"])
def checkpoint(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    make_checkpoint(directory, request.param)
    return directory


def test_runner_conforms(checkpoint):
    facts = device_facts(device_model(checkpoint))
    check_runner(lambda: TorchRunner(device_model(checkpoint), facts, reload=lambda: (device_model(checkpoint), None)))


@pytest.mark.parametrize("varlen", [varlen_attention, without_pages])
def test_graphs_give_what_the_same_steps_give_without(checkpoint, varlen):
    recorder = Recorder()
    with torch.inference_mode():
        graphs = device_model(checkpoint, varlen, recorder)
        eager = device_model(checkpoint, varlen, enforce_eager=True)
        assert recorder.recorded == 1  # the largest one
        tables = [[7, 3, 30], [1, 2], [40, 41, 50]]
        for step, starts in enumerate([(0, 0, 0), (1, 1, 1), (2, 2), (3, 3), (4, 4), (5,), (6,), (7, 5), (8, 6, 2)]):
            rows = [Row(Slot(i), start, [step + i], tables[i], True) for i, start in enumerate(starts)]
            found, expected = graphs.compute(rows), eager.compute(rows)
            for ours, theirs in zip(found.first_token, expected.first_token, strict=True):
                torch.testing.assert_close(found.hidden[ours], expected.hidden[theirs], atol=1e-4, rtol=1e-4)
    assert recorder.replayed == 10
    assert recorder.recorded < 10


def test_prefill_and_mixed_steps_run_without_graphs(checkpoint):
    recorder = Recorder()
    with torch.inference_mode():
        model = device_model(checkpoint, capture=recorder)
        model.compute([Row(Slot(0), 0, [1, 2, 3], [0], False), Row(Slot(1), 0, [5], [1], True)])
    assert recorder.replayed == 1  # the trial


def test_a_recording_that_fails_or_lies_leaves_graphs_out(checkpoint, caplog):
    def refusing(run):
        raise RuntimeError("operation not permitted when stream is capturing\nat line 1")

    def lying(run):
        return lambda: run() * 1.1

    for capture in (refusing, lying):
        with torch.inference_mode():
            model = device_model(checkpoint, capture=capture)
            model.compute([Row(Slot(0), 0, [1], [0], True)])
    assert "not recorded as graphs: operation not permitted when stream is capturing" in caplog.text
    assert "not recorded as graphs: a replay differs" in caplog.text


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("gemma2", "gather; no graphs"),
        ("gpt_oss", "gather; no graphs"),
        ("qwen2_moe", "varlen, paged; no graphs"),
    ],
)
def test_models_get_what_serves_them(tmp_path, caplog, kind, line):
    make_checkpoint(tmp_path, kind)
    caplog.set_level("INFO", logger="trillm.load")
    device_model(tmp_path)
    assert f"attention: {line}" in caplog.text


def test_batch_invariance_fixes_how_attention_is_called_or_is_refused(checkpoint):
    seen = set()

    def noting(*args: object, num_splits: int | None, **kwargs: object) -> torch.Tensor:
        max_q, max_k = args[-2:]
        seen.add((max_q > 1, max_k, num_splits))
        return varlen_attention(*args, num_splits=num_splits, **kwargs)

    def refusing(*args: object, **kwargs: object) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    with torch.inference_mode():
        model = device_model(checkpoint, noting, batch_invariant=True)
        for starts in ((0,), (1, 0), (2, 1, 0)):
            model.compute([Row(Slot(i), start, [i], [i], True) for i, start in enumerate(starts)])
        model.compute([Row(Slot(0), 3, [1, 2, 3], [0, 9], True), Row(Slot(1), 2, [5], [1], True)])
    assert seen == {(True, 64, 1)}
    with pytest.raises(StartError, match=r"--batch-invariant needs varlen attention.*no such kernel"):
        device_model(checkpoint, refusing, batch_invariant=True)
