"""Steps started before the ones before them have told what they sampled: the tokens are those of one at a time."""

from __future__ import annotations

import math

import pytest
import torch

from gpu.last_tokens import LastTokens
from gpu.started_step import FinishedStep
from gpu.torch_runner import TorchRunner
from protocol.ids import RequestId, Slot
from protocol.spec import EngineFacts
from protocol.step import PENDING, NewSequence, Row, StepPlan
from tests.helpers.runner_conformance import params
from tests.helpers.stand_in_device import device_model
from tests.helpers.tiny_checkpoints import HIDDEN_SIZE, VOCAB_SIZE, make_checkpoint

WISHES = (
    params(9),
    params(9, temperature=0.9, frequency_penalty=1.1, repetition_penalty=1.3, logprobs=2),
    params(9, temperature=0.7, top_p=0.9, min_tokens=4, stop_token_ids=list(range(200)), presence_penalty=0.4),
)
PROMPTS = ([5, 6, 7, 8, 9], [11, 12], [1, 2, 3])
BLOCKS = ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("mistral")
    make_checkpoint(directory, "mistral_sliding")
    return directory


def make_runner(checkpoint, **changes: object) -> TorchRunner:
    return TorchRunner(
        device_model(checkpoint, **changes), EngineFacts(64, 120, 4, VOCAB_SIZE, "cuda", "float32", 0, 0, HIDDEN_SIZE)
    )


def plans(wishes, num_steps: int, known: dict[int, list[int]] | None = None) -> list[StepPlan]:
    """Whole prompts, then a token per step: PENDING, or what is known."""
    made = []
    for step in range(num_steps):
        rows, new = [], []
        for index, wish in enumerate(wishes):
            prompt, blocks, slot = PROMPTS[index], BLOCKS[index], Slot(index)
            if step == 0:
                new.append(NewSequence(slot, RequestId(str(index)), prompt, [], wish))
                rows.append(Row(slot, 0, prompt, blocks, True))
            else:
                token_id = PENDING if known is None else known[index][step - 1]
                rows.append(Row(slot, len(prompt) + step - 1, [token_id], blocks, True))
        made.append(StepPlan(step, [], new, rows))
    return made


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_steps_that_are_started_ahead_sample_the_same(checkpoint, enforce_eager):
    runner = make_runner(checkpoint)
    expected = []
    for step in range(8):
        known = {i: [result.sampled[i].token_id for result in expected] for i in range(len(WISHES))}
        expected.append(runner.step(plans(WISHES, step + 1, known)[-1]))
    ahead = make_runner(checkpoint, enforce_eager=enforce_eager)
    started = [ahead.start(plan) for plan in plans(WISHES, 8)]
    for found, wanted in zip(started, expected, strict=True):
        result = found.result()
        assert [one.token_id for one in result.sampled] == [one.token_id for one in wanted.sampled]
        for ours, theirs in zip(result.sampled, wanted.sampled, strict=True):
            assert (ours.logprobs is None) == (theirs.logprobs is None)
            if ours.logprobs is not None:
                assert ours.logprobs.token_ids == theirs.logprobs.token_ids
                assert ours.logprobs.logprobs == pytest.approx(theirs.logprobs.logprobs, abs=1e-4)
    assert started[0].result() is started[0].result()


def test_a_step_that_needs_the_history_waits_for_it(checkpoint):
    probe = make_runner(checkpoint)
    first, second, third = (one.result().sampled[0].token_id for one in map(probe.start, plans(WISHES[:1], 3)))
    wish = params(9, bad_words_token_ids=[[first, second], [second, third]])
    runner = make_runner(checkpoint)
    sampled = [one.result().sampled[0].token_id for one in [runner.start(plan) for plan in plans([wish], 3)]]
    assert sampled[0] == first
    assert sampled[1] != second


def test_a_row_that_failed_does_no_harm_to_a_step_started_ahead(checkpoint):
    healthy = make_runner(checkpoint)
    expected = [one.result().sampled[1].token_id for one in [healthy.start(plan) for plan in plans(WISHES, 4)]]
    runner = make_runner(checkpoint)
    with torch.inference_mode():
        runner._model.decoder.embedding[PROMPTS[0][0]] = math.nan
    results = [one.result() for one in [runner.start(plan) for plan in plans(WISHES, 4)]]
    assert results[0].sampled[0].error is not None
    assert [result.sampled[1].token_id for result in results] == expected


def test_a_model_that_is_told_its_tokens_by_the_host_is_waited_for(checkpoint):
    runner = make_runner(checkpoint)
    expected = [one.result().sampled for one in [runner.start(plan) for plan in plans(WISHES[:1], 4)]]
    told = make_runner(checkpoint)
    told._model.last_tokens = None
    assert [one.result().sampled for one in [told.start(plan) for plan in plans(WISHES[:1], 4)]] == expected


def test_a_plan_without_rows_is_finished_at_once(checkpoint):
    assert isinstance(make_runner(checkpoint).start(StepPlan(0, [], [], [])), FinishedStep)


def test_marks_of_all_slots_are_looked_up_and_failures_keep_the_last():
    last = LastTokens(3, torch.device("cpu"))
    last.store(torch.tensor([2, 0]), torch.tensor([7, 9]))
    last.store(torch.tensor([2, 1]), torch.tensor([-1, 4]))
    marks = [last.mark(Slot(index)) for index in (0, 1, 2)]
    assert all(mark < 0 for mark in marks)
    assert last.looked_up(torch.tensor([5, *marks, 0])).tolist() == [5, 9, 4, 7, 0]
