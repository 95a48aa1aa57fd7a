"""Attention by flashinfer's calls gives what the reference gives, and is chosen where it does and varlen does not."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.attention_backend import GatherBackend
from gpu.flashinfer_attention import FlashInfer, FlashInferBackend, FlashInferScores
from gpu.flashinfer_package import open_flashinfer
from protocol.errors import StartError
from protocol.ids import Slot
from protocol.step import Row
from scripts.gpu_checks.flashinfer_without_gpu import FLASHINFER, DecodeWrapper, PrefillWrapper
from tests.gpu.test_varlen_attention import CPU, HEAD_DIM, HEADS, KV_HEADS, make_pool, plans
from tests.helpers.stand_in_device import device_model, without_pages
from tests.helpers.tiny_checkpoints import make_checkpoint


@settings(max_examples=25)
@given(plans(), st.sampled_from([None, 1, 4, 7]), st.sampled_from([None, 0.3]), st.sampled_from([None, 5.0]))
def test_every_batch_is_attended_as_by_the_reference(plan, window, scale, softcap):
    rows, block_size, num_blocks = plan
    pool = make_pool(num_blocks, block_size)
    reference = GatherBackend([window], block_size, torch.float32, CPU).batch(rows)
    scores = FlashInferScores(HEADS, KV_HEADS, HEAD_DIM, scale, softcap)
    backend = FlashInferBackend(FLASHINFER, scores, [window], block_size, torch.float32, torch.float32, CPU)
    batch = backend.batch(rows)
    for ours, theirs in zip(
        (batch.token_ids, batch.positions, batch.begun_blocks),
        (reference.token_ids, reference.positions, reference.begun_blocks),
        strict=True,
    ):
        assert torch.equal(ours, theirs)
    assert batch.first_token == reference.first_token
    queries = torch.randn(len(batch.token_ids), HEADS, HEAD_DIM)
    expected = reference.attention[window].attend(queries, 1, pool, scale, softcap)
    found = batch.attention[window].attend(queries, 1, pool, scale, softcap)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "changes"), [("gemma2", {}), ("mistral_sliding", {"kv_cache_dtype": "fp8"})])
def test_it_serves_what_varlen_attention_does_not(tmp_path, caplog, kind, changes):
    make_checkpoint(tmp_path, kind)
    caplog.set_level("INFO", logger="trillm.load")
    found = device_model(tmp_path, flashinfer=FLASHINFER, **changes)
    assert "attention: flashinfer; no graphs" in caplog.text
    expected = device_model(tmp_path, **changes)
    with torch.inference_mode():
        for start, count in ((0, 9), (9, 1), (10, 3)):
            long = Row(Slot(0), start, list(range(start, start + count)), [5, 2, 9, 1], True)
            short = Row(Slot(1), start // 9, [7], [8], True)
            ours, theirs = (model.compute([long, short]).hidden for model in (found, expected))
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_it_comes_before_gathering_and_after_pages(tmp_path, caplog):
    make_checkpoint(tmp_path, "mistral_sliding")
    caplog.set_level("INFO", logger="trillm.load")
    device_model(tmp_path, flashinfer=FLASHINFER)
    device_model(tmp_path, without_pages, flashinfer=FLASHINFER)
    chosen = [record.message for record in caplog.records if record.message.startswith("attention: ")]
    assert chosen == ["attention: varlen, paged; graphs", "attention: flashinfer; no graphs"]


def test_what_fails_or_is_wrong_is_left_out(tmp_path, caplog):
    class Failing(DecodeWrapper):
        def plan(self, *args: object, **kwargs: object) -> None:
            raise RuntimeError("ninja: build stopped\nat line 1")

    class Wrong(PrefillWrapper):
        def plan(self, *args: object, window_left: int, **kwargs: object) -> None:
            super().plan(*args, window_left=-1, **kwargs)

    make_checkpoint(tmp_path, "mistral_sliding")
    caplog.set_level("INFO", logger="trillm.load")
    for package in (FlashInfer(Failing, PrefillWrapper), FlashInfer(DecodeWrapper, Wrong)):
        device_model(tmp_path, without_pages, flashinfer=package)
    assert "attention is not flashinfer: ninja: build stopped" in caplog.text
    assert "attention is not flashinfer: it differs from the reference by" in caplog.text
    assert caplog.text.count("attention: varlen, gathered; graphs") == 2


def test_it_is_not_for_batch_invariance(tmp_path):
    def refusing(*args: object, **kwargs: object) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    make_checkpoint(tmp_path, "mistral_sliding")
    with pytest.raises(StartError, match=r"flashinfer: it splits a sequence's keys by what else is in the batch"):
        device_model(tmp_path, refusing, flashinfer=FLASHINFER, batch_invariant=True)


def test_a_package_that_is_not_there_or_does_not_import_is_done_without(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    assert open_flashinfer() is None
    empty = ModuleType("flashinfer")
    monkeypatch.setitem(sys.modules, "flashinfer", empty)
    assert open_flashinfer() is None
    assert "attention without flashinfer: cannot import name" in caplog.text
    monkeypatch.setattr(empty, "BatchDecodeWithPagedKVCacheWrapper", DecodeWrapper, raising=False)
    monkeypatch.setattr(empty, "BatchPrefillWithPagedKVCacheWrapper", PrefillWrapper, raising=False)
    assert open_flashinfer() == FlashInfer(DecodeWrapper, PrefillWrapper)
