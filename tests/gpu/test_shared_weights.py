"""How long an engine waits for the weights actor: longer for what takes longer to load."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gpu import shared_weights
from gpu.shared_weights import LEAST_BYTES_A_SECOND, WeightsOffer, longest_wait


def test_a_small_checkpoint_is_waited_for_as_long_as_was_said():
    assert longest_wait(300.0, 0) == 300.0
    assert 300.0 < longest_wait(300.0, 3 * 10**8) < 330.0


def test_a_large_checkpoint_is_waited_for_as_long_as_a_slow_disk_needs():
    assert longest_wait(300.0, 140 * 10**9) == 300.0 + 140 * 10**9 / LEAST_BYTES_A_SECOND == 7300.0


def test_every_checkpoint_that_the_weights_actor_loads_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    for name, size in [("served", 3), ("draft", 2)]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(bytes(size))
    asked: list[tuple[float, int]] = []

    def none(seconds: float, num_bytes: int) -> float:
        asked.append((seconds, num_bytes))
        return 0.0

    monkeypatch.setattr(shared_weights, "longest_wait", none)
    checkpoints = [str(tmp_path / name) for name in ("served", "draft", "not there")]
    with caplog.at_level(logging.WARNING):
        assert WeightsOffer(300.0, checkpoints).wait(checkpoints[1]) is None
    assert asked == [(300.0, 5)]
    assert "this engine loads by itself" in caplog.text
