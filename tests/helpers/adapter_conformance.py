"""What every Runner must do with adapters: `check_adapters` is called by the tests of each implementation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu.runner import Runner
from protocol.errors import BadRequestError
from protocol.lora import NO_LORA, LoraId, LoraRequest
from protocol.operations import SleepTag
from tests.helpers.runner_conformance import Driver, a_prompt, params


def check_adapters(runner: Runner, adapters: Sequence[Path]) -> None:
    """What a runner whose spec has max_loras 2 must do with adapters, of which it gets three."""
    driver = Driver(runner)
    try:
        for check in (_check_residence, _check_adapters_keep_to_their_sequences, _check_adapters_survive_sleep):
            for lora_id in runner.loras():
                runner.remove_lora(lora_id)
            check(driver, [(LoraId(11 + i), path) for i, path in enumerate(adapters)])
    finally:
        runner.close()


def _add(runner: Runner, lora_id: LoraId, path: Path) -> None:
    runner.add_lora(LoraRequest(f"adapter-{lora_id}", lora_id, str(path)), runner.read_adapter(path))


def _check_residence(driver: Driver, adapters: Sequence[tuple[LoraId, Path]]) -> None:
    runner, (first, second, third) = driver.runner, adapters
    for adapter in (first, second, first):
        _add(runner, *adapter)
    assert runner.loras() == [first[0], second[0]]
    with pytest.raises(BadRequestError, match="max-loras"):
        _add(runner, *third)
    assert runner.remove_lora(first[0])
    assert not runner.remove_lora(first[0])
    assert not runner.remove_lora(third[0])
    _add(runner, *third)
    assert runner.loras() == [second[0], third[0]]
    with pytest.raises(BadRequestError, match=r"adapter_config\.json"):
        runner.read_adapter(first[1] / "nowhere")


def _check_adapters_keep_to_their_sequences(driver: Driver, adapters: Sequence[tuple[LoraId, Path]]) -> None:
    for adapter in adapters[:2]:
        _add(driver.runner, *adapter)
    wish = params(10, temperature=0.7)
    lora_ids = [NO_LORA, adapters[0][0], adapters[1][0], adapters[0][0]]
    alone = []
    for lora_id in lora_ids:
        sequence = driver.admit(0, a_prompt(driver, 33), wish, lora_id=lora_id)
        alone += driver.run(sequence)
        driver.free(sequence)
    assert alone[1] == alone[3]
    assert alone[0] not in alone[1:]
    assert alone[1] != alone[2]
    for chunk in (7, 1_000_000):
        sequences = [driver.admit(i, a_prompt(driver, 33), wish, lora_id=one) for i, one in enumerate(lora_ids)]
        driver.step((sequences[1], 16))
        assert driver.run(*sequences, chunk=chunk) == alone
        after = driver.admit_after(sequences[1], 3, a_prompt(driver, 33), wish)
        assert after.computed > 0
        driver.free(sequences[3])
        assert driver.run(after) == [alone[1]]
        for sequence in (*sequences[:3], after):
            driver.free(sequence)


def _check_adapters_survive_sleep(driver: Driver, adapters: Sequence[tuple[LoraId, Path]]) -> None:
    (lora_id, _), other, _ = adapters
    wish = params(9)
    for adapter in adapters[:2]:
        _add(driver.runner, *adapter)
    expected = driver.admit(0, a_prompt(driver, 21), wish, lora_id=lora_id)
    driver.run(expected)
    driver.free(expected)
    for level in (1, 2):
        interrupted = driver.admit(1, a_prompt(driver, 21), wish, lora_id=lora_id)
        driver.step((interrupted, 21))
        driver.runner.sleep(level)
        driver.runner.remove_lora(other[0])
        _add(driver.runner, *other)
        driver.runner.wake([SleepTag.KV_CACHE, SleepTag.WEIGHTS])
        driver.free(interrupted)
        assert driver.runner.loras() == [lora_id, other[0]]
        resumed = driver.admit(2, a_prompt(driver, 21), wish, interrupted.output, lora_id)
        driver.run(resumed)
        driver.free(resumed)
        assert resumed.output == expected.output
