"""What the runner adds to the model: slots, isolation of broken rows, prompt log-probabilities, facts."""

from __future__ import annotations

import math
import weakref
from pathlib import Path

import attrs
import msgspec
import pytest
import torch

from actors.kv.window import Window
from gpu.load_model import compute_threads, pick_device
from gpu.prompt_logprobs import PROMPT_LOGITS_ROWS
from gpu.torch_runner import TorchRunner
from protocol.errors import CheckpointError, ConflictError, StartError
from protocol.ids import EngineIndex, Epoch, RequestId, Slot
from protocol.operations import SleepTag
from protocol.spec import EngineSpec
from protocol.step import KvCopy, NewSequence, Row, StepPlan, StepResult
from tests.helpers.runner_conformance import (
    Driver,
    check_blocks_come_back_from_frames,
    check_saves_come_before_loads_and_these_before_rows,
    params,
)
from tests.helpers.tiny_checkpoints import VOCAB_SIZE, make_checkpoint

POISON = 319
"""A token that no prompt here holds unless it wants NaN."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("mistral")
    make_checkpoint(directory, "mistral_sliding")
    return directory


def load(checkpoint, **changes: object) -> TorchRunner:
    sizes = {"block_size": 4, "num_gpu_blocks_override": 64, "device": "cpu", "threads": 1} | changes
    return TorchRunner.load(EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), **sizes), lambda _: None)


@pytest.fixture
def poisoned(checkpoint):
    """A runner whose model gives NaN for whoever sees POISON."""
    runner = load(checkpoint)
    with torch.inference_mode():
        runner._model.decoder.embedding[POISON] = math.nan
    return runner


def plan_of(step: int, *rows: tuple[int, list[int], list[int]]) -> StepPlan:
    """Whole prompts (slot, tokens, blocks), greedy."""
    new = [NewSequence(Slot(slot), RequestId(str(slot)), ids, [], params()) for slot, ids, _ in rows]
    return StepPlan(step, [], new, [Row(Slot(slot), 0, ids, blocks, True) for slot, ids, blocks in rows])


def test_a_row_that_turns_to_nan_fails_alone(poisoned, checkpoint):
    expected = load(checkpoint).step(plan_of(1, (1, [5, 6, 7], [1]), (3, [8], [3]))).sampled
    result = poisoned.step(
        plan_of(1, (0, [1, POISON], [0]), (1, [5, 6, 7], [1]), (2, [POISON], [2]), (3, [8], [3]))
    ).sampled
    assert [sampled.error is not None for sampled in result] == [True, False, True, False]
    assert "not finite" in result[0].error
    assert [result[1], result[3]] == expected


def test_blocks_that_a_broken_sequence_left_behind_do_no_harm(poisoned, checkpoint):
    for step, (runner, blocks) in enumerate([(load(checkpoint), [0, 1, 2, 3]), (poisoned, [0, 1, 2, 3])]):
        if runner is poisoned:
            runner.step(plan_of(0, (3, [POISON] * 16, blocks)))
        short = NewSequence(Slot(0), RequestId("a"), [5], [], params())
        long = NewSequence(Slot(1), RequestId("b"), [9, 8, 7, 6, 5, 4], [], params())
        first = runner.step(StepPlan(1, [], [long], [Row(Slot(1), 0, [9, 8, 7, 6], [0], False)]))
        assert first.sampled == []
        rows = [Row(Slot(0), 0, [5], [3], True), Row(Slot(1), 4, [5], [0, 2], False)]
        second = runner.step(StepPlan(2, [], [short], rows)).sampled
        third = runner.step(StepPlan(3, [], [], [Row(Slot(1), 5, [4], [0, 2], True)])).sampled
        if step == 0:
            expected = (second, third)
    assert (second, third) == expected
    assert second[0].error is None


def test_shorter_rows_are_not_padded_with_what_belongs_to_others(poisoned, checkpoint):
    results = []
    for runner in (load(checkpoint), poisoned):
        if runner is poisoned:
            runner.step(plan_of(0, (3, [POISON] * 4, [0])))
        prompts = {Slot(0): list(range(9)), Slot(1): list(range(20, 27))}
        tables = {Slot(0): [1, 2, 4], Slot(1): [3, 5]}
        new = [NewSequence(slot, RequestId(str(slot)), ids, [], params()) for slot, ids in prompts.items()]
        runner.step(StepPlan(1, [], new, [Row(s, 0, ids[:-1], tables[s], False) for s, ids in prompts.items()]))
        rows = [Row(s, len(ids) - 1, ids[-1:], tables[s], True) for s, ids in prompts.items()]
        results.append(runner.step(StepPlan(2, [], [], rows)).sampled)
    assert results[0] == results[1]


def test_a_failed_row_keeps_its_slot_as_it_was(poisoned):
    poisoned.step(plan_of(1, (0, [1, POISON], [0])))
    assert poisoned._slots[Slot(0)].output_token_ids == []


def test_prompt_logprobs_of_a_long_chunk_come_whole(checkpoint):
    length = 2 * PROMPT_LOGITS_ROWS + 3
    driver = Driver(load(checkpoint))
    sequence = driver.admit(0, [token % 300 for token in range(length)], params(1, prompt_logprobs=1))
    driver.run(sequence)
    assert [logprobs.token_ids[0] for logprobs in sequence.prompt_logprobs] == sequence.prompt[1:]


def test_max_tokens_zero_computes_the_prompt_and_samples_nothing(checkpoint):
    runner = load(checkpoint)
    new = NewSequence(Slot(0), RequestId("r"), [4, 5, 6], [], params(0, prompt_logprobs=0))
    result = runner.step(StepPlan(1, [], [new], [Row(Slot(0), 0, [4, 5, 6], [0], False)]))
    assert result.sampled == []
    assert [logprobs.token_ids for logprobs in result.prompt_logprobs[0].rows] == [[5], [6]]


def test_many_rows_of_very_different_lengths_decode_together(checkpoint):
    wish = params(8, temperature=0.8)
    prompts = [[(3 * i + length) % 300 for i in range(length)] for length in (1, 2, 3, 9, 30, 31, 64, 90)]
    driver = Driver(load(checkpoint, num_gpu_blocks_override=100))
    together = driver.run(*[driver.admit(slot, prompt, wish) for slot, prompt in enumerate(prompts)])
    for prompt, output in zip(prompts, together, strict=True):
        alone = Driver(load(checkpoint))
        assert alone.run(alone.admit(0, prompt, wish)) == [output]


def test_facts_say_what_was_loaded(checkpoint):
    runner = load(checkpoint, max_model_len=100)
    facts = runner.facts
    assert (facts.max_model_len, facts.num_blocks, facts.block_size) == (100, 64, 4)
    assert (facts.vocab_size, facts.device, facts.dtype) == (VOCAB_SIZE, "cpu", "float32")
    assert facts.kv_cache_bytes == 64 * 4 * 3 * 2 * 2 * 16 * 4
    assert facts.weights_bytes > 2 * VOCAB_SIZE * 48 * 4


def test_bfloat16_computes_nearly_the_same(checkpoint):
    found = []
    for dtype in ("float32", "bfloat16"):
        driver = Driver(load(checkpoint, dtype=dtype))
        assert driver.runner.facts.dtype == dtype
        sequence = driver.admit(0, list(range(30)), params(1, prompt_logprobs=0))
        driver.run(sequence)
        found.append(torch.tensor([logprobs.logprobs[0] for logprobs in sequence.prompt_logprobs]))
    assert (found[0] - found[1]).abs().mean() < 0.2


@pytest.mark.parametrize("changes", [{"dtype": "bfloat16"}, {"kv_cache_dtype": "fp8"}], ids=["bfloat16", "fp8"])
@pytest.mark.parametrize(
    "check", [check_blocks_come_back_from_frames, check_saves_come_before_loads_and_these_before_rows]
)
def test_blocks_of_any_type_come_back_from_frames(checkpoint, changes, check):
    runner = load(checkpoint, **changes)
    check(lambda: runner, Driver(runner))
    runner.close()


def test_a_plan_without_rows_may_have_copies_and_nothing_of_it_is_left_after_close(checkpoint):
    runner = load(checkpoint)
    with Window(runner.facts.kv_layout, 2) as window:
        runner.attach_frames(window.described())
        runner.step(plan_of(1, (0, [5, 6, 7, 8], [9])))
        assert runner.step(StepPlan(2, [], [], [], [KvCopy(9, 1)])) == StepResult(2, [])
        assert any(window.frame(1))
        assert not any(window.frame(0))
        assert mapped("trillm-kv") == 2
        runner.close()
        assert mapped("trillm-kv") == 1


def mapped(name: str) -> int:
    """Places in this process's memory."""
    return sum(name in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_devices_and_types_that_are_not_here_are_refused(checkpoint):
    with pytest.raises(StartError, match="'tpu' is none of auto, cpu, cuda"):
        pick_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(StartError, match="no CUDA device"):
            load(checkpoint, device="cuda")
    with pytest.raises(CheckpointError, match="'int3' is none of float32"):
        load(checkpoint, dtype="int3")


def test_threads_are_bounded():
    assert compute_threads(3) == 3
    assert compute_threads(None) >= 1
    assert compute_threads(None, processes=1000) == 1


def test_weights_that_cannot_be_read_again_stay_asleep_until_they_can(tmp_path):
    make_checkpoint(tmp_path, "llama")
    runner = load(tmp_path)
    expected = runner.step(plan_of(1, (0, [5, 6, 7], [0])))
    assert runner.sleep(2) == [SleepTag.KV_CACHE, SleepTag.WEIGHTS]
    weights = tmp_path / "model.safetensors"
    weights.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="holds no weights"):
        runner.wake(list(SleepTag))
    (tmp_path / "elsewhere").rename(weights)
    assert runner.sleep(1) == [SleepTag.KV_CACHE, SleepTag.WEIGHTS]
    assert runner.wake(list(SleepTag)) == []
    plan = msgspec.structs.replace(plan_of(2, (0, [5, 6, 7], [0])), freed_slots=[Slot(0)])
    assert runner.step(plan).sampled == expected.sampled
    runner.close()


def test_what_sleeps_deep_keeps_its_number_of_blocks_and_its_length(tmp_path):
    make_checkpoint(tmp_path, "llama")
    runner = load(tmp_path, num_gpu_blocks_override=None, kv_cache_memory_bytes=2**20)
    facts, pool = runner.facts, runner._model.pool.size
    runner.sleep(2)
    runner.wake([SleepTag.WEIGHTS])
    assert runner._model.pool.is_released
    runner.wake([SleepTag.KV_CACHE])
    assert not runner._model.pool.is_released
    assert attrs.evolve(runner._model.pool.size, num_bytes=0) == attrs.evolve(pool, num_bytes=0)
    assert (facts.num_blocks, facts.max_model_len) == (pool.num_blocks, pool.max_model_len)
    runner.close()


def resumes_as_expected(runner: TorchRunner, expected: object) -> bool:
    plan = msgspec.structs.replace(plan_of(2, (0, [5, 6, 7], [0])), freed_slots=[Slot(0)])
    return runner.step(plan).sampled == expected


NO_ROOM = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nAnd more."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
]


@pytest.mark.parametrize("error", NO_ROOM, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("level", [1, 2])
def test_a_cache_that_there_is_no_memory_for_sleeps_on_until_there_is(tmp_path, level, error):
    make_checkpoint(tmp_path, "llama")
    runner = load(tmp_path)
    expected = runner.step(plan_of(1, (0, [5, 6, 7], [0]))).sampled
    runner.sleep(level)
    runner.wake([SleepTag.WEIGHTS])
    pool = runner._model.pool
    take = pool._take

    def fail() -> None:
        pool._take = take
        raise error

    pool._take = fail
    with pytest.raises(ConflictError, match="not enough memory to wake the KV cache"):
        runner.wake(list(SleepTag))
    assert runner.sleep(0) == [SleepTag.KV_CACHE]
    assert runner._model.pool.is_released
    assert runner.wake(list(SleepTag)) == []
    assert resumes_as_expected(runner, expected)
    runner.close()


@pytest.mark.parametrize("error", NO_ROOM, ids=lambda error: type(error).__name__)
def test_weights_that_there_is_no_memory_for_sleep_on_until_there_is(tmp_path, error):
    make_checkpoint(tmp_path, "llama")
    runner = load(tmp_path)
    expected = runner.step(plan_of(1, (0, [5, 6, 7], [0]))).sampled
    runner.sleep(2)
    reload = runner._reload

    def fail() -> None:
        runner._reload = reload
        raise error

    runner._reload = fail
    with pytest.raises(ConflictError, match="not enough memory to wake the weights"):
        runner.wake(list(SleepTag))
    assert runner.sleep(0) == [SleepTag.KV_CACHE, SleepTag.WEIGHTS]
    assert runner.wake(list(SleepTag)) == []
    assert resumes_as_expected(runner, expected)
    runner.close()


def test_what_goes_wrong_otherwise_while_it_wakes_is_no_lack_of_memory(tmp_path):
    make_checkpoint(tmp_path, "llama")
    runner = load(tmp_path)
    runner.sleep(1)

    def fail() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    runner._model.pool._take = fail
    with pytest.raises(RuntimeError, match="illegal memory access"):
        runner.wake(list(SleepTag))


def test_nothing_of_the_last_batch_is_kept_while_it_sleeps(checkpoint):
    runner = load(checkpoint)
    wish = params(logit_bias={3: 1.0}, repetition_penalty=1.1, presence_penalty=0.5, temperature=0.7)
    new = [NewSequence(Slot(slot), RequestId(str(slot)), [5, 6, 7], [], wish) for slot in range(2)]
    runner.step(StepPlan(1, [], new, [Row(one.slot, 0, [5, 6, 7], [one.slot], True) for one in new]))
    columns = runner._sampler._columns
    kept = [weakref.ref(part.state) for part in [*columns.biased, *columns.seen, *columns.counted]]
    kept += [weakref.ref(slot.seen) for slot in runner._slots.values()]
    del columns
    assert len(kept) > 3
    runner.sleep(0)
    assert all(ref() is not None for ref in kept)
    runner.sleep(1)
    assert all(ref() is None for ref in kept)
    runner.close()
