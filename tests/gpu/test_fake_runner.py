"""The dummy runner keeps the Runner's contract, and finds out plans that do not keep theirs."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from actors.kv.window import Window
from gpu.fake_runner import FakeRunner
from gpu.fake_slots import PlanError
from gpu.runner import open_runner
from protocol.errors import BadRequestError, CheckpointError
from protocol.ids import EngineIndex, Epoch, RequestId, Slot
from protocol.lora import LoraId
from protocol.sampling import SamplingParams
from protocol.spec import EngineSpec, LoadFormat
from protocol.step import PENDING, KvCopy, NewSequence, Row, StepPlan
from tests.helpers.adapter_conformance import check_adapters
from tests.helpers.adapters import write_adapter
from tests.helpers.dummy_checkpoint import IM_END, dummy_tokenizer, write_dummy_checkpoint
from tests.helpers.runner_conformance import Driven, Driver, check_runner, only, params

PROMPT = [10, 11, 12, 13, 14]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dummy_checkpoint(tmp_path_factory.mktemp("dummy"))


def a_spec(checkpoint: Path, **changes: object) -> EngineSpec:
    spec = EngineSpec(
        engine_index=EngineIndex(0),
        epoch=Epoch(1),
        requests_address="",
        outputs_addresses={},
        checkpoint=str(checkpoint),
        load_format=LoadFormat.DUMMY,
        max_model_len=256,
        max_num_seqs=4,
        block_size=16,
    )
    return msgspec.structs.replace(spec, **changes)


@pytest.fixture
def driver(checkpoint: Path) -> Driver:
    return Driver(FakeRunner(a_spec(checkpoint)))


def run(driver: Driver, wish: SamplingParams, prompt: list[int] = PROMPT) -> Driven:
    sequence = driver.admit(0, prompt, wish)
    driver.run(sequence)
    driver.free(sequence)
    return sequence


# ------------------------------------------------------------------ the contract


def test_conforms_to_the_runner_interface(checkpoint: Path):
    check_runner(partial(FakeRunner, a_spec(checkpoint)))


def test_open_runner_gives_it_for_the_dummy_load_format(checkpoint: Path):
    assert isinstance(open_runner(a_spec(checkpoint), lambda _: None), FakeRunner)


def test_needs_no_torch():
    """Else an engine without weights would take seconds to start."""
    code = "import sys, gpu.fake_runner; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2]).returncode == 0


def test_text_is_made_of_words_and_ends_by_itself(driver: Driver):
    tokenizer = dummy_tokenizer()
    eos = tokenizer.token_to_id(IM_END)
    outputs = [run(driver, params(120, temperature=1.0, seed=seed)).output for seed in range(8)]
    assert sum(eos in output for output in outputs) >= 4
    text = tokenizer.decode([t for output in outputs for t in output if t != eos])
    assert all(character.isalpha() or character == " " for character in text)
    assert " " in text


def test_seeds_differ_and_repeat(driver: Driver):
    outputs = [run(driver, params(20, temperature=1.0, seed=seed)).output for seed in (1, 2, 1)]
    assert outputs[0] == outputs[2] != outputs[1]


def test_greedy_takes_the_likeliest(driver: Driver):
    sequence = run(driver, params(20, logprobs=1))
    for sampled in sequence.sampled:
        assert sampled.logprobs is not None
        assert sampled.logprobs.rank == 1
        assert sampled.logprobs.token_ids == [sampled.token_id] * 2


def test_logprobs_are_those_of_one_distribution(driver: Driver):
    vocab_size = driver.runner.facts.vocab_size
    (sampled,) = run(driver, params(1, temperature=1.0, logprobs=vocab_size)).sampled
    assert sampled.logprobs is not None
    best = sampled.logprobs.token_ids[1:]
    assert sorted(best) == list(range(vocab_size))
    assert math.fsum(map(math.exp, sampled.logprobs.logprobs[1:])) == pytest.approx(1.0)
    assert best[sampled.logprobs.rank - 1] == sampled.token_id


def test_sampling_follows_the_logprobs(driver: Driver):
    """Over many seeds each token comes about as often as its probability says."""
    first = [run(driver, params(1, temperature=1.0, seed=seed, logprobs=0)).sampled[0] for seed in range(600)]
    counts = Counter(sampled.token_id for sampled in first)
    probabilities = {s.token_id: math.exp(s.logprobs.logprobs[0]) for s in first if s.logprobs is not None}
    for token_id, probability in probabilities.items():
        assert abs(counts[token_id] / 600 - probability) < 0.08


@pytest.mark.parametrize("wish", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_truncation_to_one_token_is_greedy(driver: Driver, wish: dict):
    assert run(driver, params(12, temperature=1.5, **wish)).output == run(driver, params(12)).output


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_params_bind(driver: Driver, temperature: float):
    wish = partial(params, 10, temperature=temperature)
    free = run(driver, wish()).output
    assert set(run(driver, wish(allowed_token_ids=[40, 41])).output) <= {40, 41}
    assert run(driver, wish(logit_bias={77: 100.0})).output == [77] * 10
    assert free[0] not in run(driver, wish(bad_words_token_ids=[[free[0]]])).output
    paired = run(driver, wish(bad_words_token_ids=[free[:2]])).output
    assert paired[0] == free[0]
    assert paired[1] != free[1]
    spread = run(driver, params(40, logit_bias={77: 9.0, 78: 9.0, 79: 9.0}, frequency_penalty=2.0)).output
    assert {77, 78, 79} <= set(spread)
    assert run(driver, params(2, logit_bias={77: 100.0}, min_tokens=1, stop_token_ids=[77])).output[0] != 77


def test_repetition_penalty_covers_the_prompt(driver: Driver):
    assert PROMPT[0] == 10
    assert run(driver, params(1, allowed_token_ids=[10, 300])).output == [10]
    assert run(driver, params(1, allowed_token_ids=[10, 300], repetition_penalty=2.0)).output == [300]


def test_a_grammar_that_allows_only_tokens_without_a_word_is_followed(driver: Driver):
    vocab_size = driver.runner.facts.vocab_size
    sequence = driver.admit(0, PROMPT, params())
    driver.step((sequence, 5), bitmasks={Slot(0): only([3, 4, 5], vocab_size)})
    assert sequence.output[0] in (3, 4, 5)


def test_a_row_without_an_allowed_token_fails_alone(checkpoint: Path):
    runner = FakeRunner(a_spec(checkpoint))
    new = [NewSequence(Slot(i), RequestId(str(i)), PROMPT, [], params()) for i in (0, 1)]
    mask = bytes(runner.facts.vocab_size // 8)
    rows = [Row(Slot(0), 0, PROMPT, [0], True, mask), Row(Slot(1), 0, PROMPT, [1], True)]
    bad, good = runner.step(StepPlan(1, [], new, rows)).sampled
    assert bad.error is not None
    assert good.error is None


# ------------------------------------------------------------------ sizes


@pytest.mark.parametrize(
    ("changes", "max_model_len", "num_blocks"),
    [
        ({"max_model_len": 100}, 100, 28),
        ({"max_model_len": None}, 2048, 512),
        ({"max_model_len": None, "num_gpu_blocks_override": 10}, 160, 10),
        ({"max_model_len": 100, "num_gpu_blocks_override": 3}, 100, 3),
    ],
)
def test_facts_follow_the_spec(checkpoint: Path, changes: dict, max_model_len: int, num_blocks: int):
    facts = FakeRunner(a_spec(checkpoint, **changes)).facts
    assert (facts.max_model_len, facts.num_blocks, facts.vocab_size) == (max_model_len, num_blocks, 512)


@pytest.mark.parametrize("config", [None, "[]", "{}", '{"vocab_size": "many"}', '{"vocab_size": 8, "eos_token_id": 8}'])
def test_a_checkpoint_that_it_cannot_serve_is_refused(tmp_path: Path, config: str | None):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        FakeRunner(a_spec(tmp_path))


def test_a_vocabulary_as_a_list_of_pieces_is_read(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"vocab_size": 40, "eos_token_id": 0}')
    pieces = [["<s>", 0.0], *[[f"▁word{letter}", -1.0] for letter in "abcdefghijkl"], *[["!", -2.0]] * 30]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": pieces}}))
    output = run(Driver(FakeRunner(a_spec(tmp_path))), params(50)).output
    assert set(output) <= set(range(13))


def test_a_step_takes_as_long_as_asked_unless_closed(checkpoint: Path):
    runner = FakeRunner(a_spec(checkpoint, dummy_step_seconds=60.0))
    thread = threading.Thread(target=runner.step, args=(StepPlan(1, [], [], []),))
    thread.start()
    runner.close()
    thread.join(5)
    assert not thread.is_alive()


# ------------------------------------------------------------------ plans that must not be

SEQUENCE = NewSequence(Slot(0), RequestId("a"), PROMPT, [], params())
OTHER = NewSequence(Slot(1), RequestId("b"), PROMPT, [], params())


def row(start: int = 0, count: int = 5, blocks: tuple[int, ...] = (0,), slot: int = 0, sample: bool = False) -> Row:
    return Row(Slot(slot), start, PROMPT[start : start + count], list(blocks), sample)


def plan(step: int, *rows: Row, new: tuple[NewSequence, ...] = (), freed: tuple[int, ...] = ()) -> StepPlan:
    return StepPlan(step, [Slot(slot) for slot in freed], list(new), list(rows))


def pending_row(start: int, count: int = 1) -> Row:
    return Row(Slot(0), start, [PENDING] * count, [0], True)


def draft_row(count: int, num_drafts: int, guess: int = 9) -> Row:
    token_ids = [*PROMPT[: count - num_drafts], *[guess] * num_drafts]
    return Row(Slot(0), 0, token_ids, [0], True, None, num_drafts)


def masked_draft_row(draft_bitmasks: list[bytes], guess: int = 9) -> Row:
    one = draft_row(len(PROMPT) + 1, 1, guess)
    return msgspec.structs.replace(one, grammar_bitmask=only([9], 512), draft_bitmasks=draft_bitmasks)


SAMPLING = plan(1, row(sample=True), new=(SEQUENCE,))


def long(slot: int, token_id: int = 7) -> NewSequence:
    """More than a block of one token."""
    return NewSequence(Slot(slot), RequestId("long"), [token_id] * 18, [], params())


def long_row(token_id: int = 7) -> Row:
    return Row(Slot(1), 0, [token_id] * 18, [4, 5], False)


def begun(num_computed: int) -> NewSequence:
    """As long as `long`, with so much of it said to be computed."""
    return msgspec.structs.replace(long(0), num_computed_tokens=num_computed)


def begun_row(*blocks: int) -> Row:
    return Row(Slot(0), 16, [7, 7], list(blocks), False)


BAD_PLANS: list[tuple[str, list[StepPlan]]] = [
    ("nobody has it", [plan(1, freed=(0,))]),
    ("is not one of 4", [plan(1, new=(NewSequence(Slot(4), RequestId("a"), PROMPT, [], params()),))]),
    ("has it", [plan(1, new=(SEQUENCE, SEQUENCE))]),
    ("has no prompt", [plan(1, new=(NewSequence(Slot(0), RequestId("a"), [], [], params()),))]),
    ("not in the vocabulary", [plan(1, new=(NewSequence(Slot(0), RequestId("a"), [512], [], params()),))]),
    ("has a row, but no sequence", [plan(1, row())]),
    ("starts at 1", [plan(1, row(1, 2), new=(SEQUENCE,))]),
    ("starts at 0", [plan(1, row(0, 2), new=(SEQUENCE,)), plan(2, row(0, 5))]),
    ("no token", [plan(1, draft_row(1, 1), new=(SEQUENCE,))]),
    ("does not sample", [plan(1, msgspec.structs.replace(draft_row(6, 1), sample=False), new=(SEQUENCE,))]),
    ("0 draft_bitmasks", [plan(1, masked_draft_row([]), new=(SEQUENCE,))]),
    ("must have 64 bytes", [plan(1, masked_draft_row([b""]), new=(SEQUENCE,))]),
    ("not what the grammar allows", [plan(1, masked_draft_row([only([9], 512)], guess=8), new=(SEQUENCE,))]),
    ("draft 512 is not", [plan(1, draft_row(6, 1, 512), new=(SEQUENCE,))]),
    ("samples before its end", [plan(1, draft_row(5, 1), new=(SEQUENCE,))]),
    ("computes nothing", [plan(1, row(0, 0), new=(SEQUENCE,))]),
    ("other tokens", [plan(1, Row(Slot(0), 0, [9], [0], False), new=(SEQUENCE,))]),
    ("other tokens", [plan(1, Row(Slot(0), 0, [*PROMPT, 9], [0], False), new=(SEQUENCE,))]),
    ("samples before its end", [plan(1, row(0, 4, sample=True), new=(SEQUENCE,))]),
    ("must have 64 bytes", [plan(1, Row(Slot(0), 0, PROMPT, [0], True, bytes(68)), new=(SEQUENCE,))]),
    ("too few", [plan(1, row(blocks=()), new=(SEQUENCE,))]),
    ("has become", [plan(1, row(0, 2, (0,)), new=(SEQUENCE,)), plan(2, row(2, 3, (1,)))]),
    ("is not one of 64", [plan(1, row(blocks=(64,)), new=(SEQUENCE,))]),
    ("sampled no token", [plan(1, row(), new=(SEQUENCE,)), plan(2, pending_row(5))]),
    ("sampled no token", [SAMPLING, plan(2), plan(3, pending_row(5))]),
    ("starts at 6", [SAMPLING, plan(2, pending_row(6))]),
    ("before the last one is pending", [SAMPLING, plan(2, pending_row(5, 2))]),
    ("is also slot 0's", [plan(1, row(), row(slot=1), new=(SEQUENCE, OTHER))]),
    ("is also slot 1's", [plan(1, long_row(), new=(long(1),)), plan(2, begun_row(4, 5), new=(begun(16),))]),
    ("does not hold", [plan(1, begun_row(4, 6), new=(begun(16),))]),
    ("does not hold", [plan(1, long_row(9), new=(long(1, 9),)), plan(2, begun_row(4, 6), new=(begun(16),))]),
    ("17 of 18 tokens", [plan(1, begun_row(4, 6), new=(begun(17),))]),
    ("32 of 18 tokens", [plan(1, begun_row(4, 6), new=(begun(32),))]),
    ("starts at 16", [plan(1, long_row(), new=(long(1),)), plan(2, begun_row(4, 6), new=(long(0),))]),
    ("is also slot 0's", [plan(1, row(blocks=(3, 3)), new=(SEQUENCE,))]),
    ("two rows", [plan(1, row(0, 2), row(2, 3), new=(SEQUENCE,))]),
    ("comes after step 1", [plan(1), plan(1)]),
    ("the limit is 4", [plan(1, row(), new=(SEQUENCE,))]),
]


@pytest.mark.parametrize(("violation", "plans"), BAD_PLANS, ids=[str(i) for i in range(len(BAD_PLANS))])
def test_a_plan_that_must_not_be_is_found_out(checkpoint: Path, violation: str, plans: list[StepPlan]):
    limit = 4 if "limit" in violation else 512
    runner = FakeRunner(a_spec(checkpoint, max_num_batched_tokens=limit))
    for good in plans[:-1]:
        runner.step(good)
    with pytest.raises(PlanError, match=violation):
        runner.step(plans[-1])


def test_a_freed_slot_and_its_blocks_are_free_in_the_same_plan(checkpoint: Path):
    runner = FakeRunner(a_spec(checkpoint))
    runner.step(plan(1, row(), new=(SEQUENCE,)))
    runner.step(plan(2, row(), new=(SEQUENCE,), freed=(0,)))


def test_a_row_after_one_that_failed_is_void_and_does_no_harm(checkpoint: Path):
    runner = FakeRunner(a_spec(checkpoint))
    mask = bytes(runner.facts.vocab_size // 8)
    runner.step(plan(1, Row(Slot(0), 0, PROMPT, [0], True, mask), row(blocks=(1,), slot=1), new=(SEQUENCE, OTHER)))
    (void,) = runner.step(plan(2, pending_row(5))).sampled
    assert void.error is not None


def test_a_block_of_one_slot_may_begin_another_and_outlive_the_first(checkpoint: Path):
    runner = FakeRunner(a_spec(checkpoint))
    runner.step(plan(1, long_row(), new=(long(1),)))
    runner.step(plan(2, begun_row(4, 6), new=(begun(16),)))
    with pytest.raises(PlanError, match="block 4 is also slot 0's"):
        runner.step(plan(3, msgspec.structs.replace(long_row(), block_table=[4, 7]), new=(long(1),), freed=(1,)))


def test_a_closed_runner_does_not_step(checkpoint: Path):
    runner = FakeRunner(a_spec(checkpoint))
    runner.close()
    with pytest.raises(PlanError, match="closed"):
        runner.step(plan(1))


def test_overwritten_kv_changes_what_comes_next(checkpoint: Path):
    """So that a scheduler which reuses a block too early is found out by its tokens."""

    def after(spoil: Callable[[FakeRunner], None]) -> int:
        runner = FakeRunner(a_spec(checkpoint))
        runner.step(plan(1, row(0, 4), new=(SEQUENCE,)))
        spoil(runner)
        return runner.step(plan(2, row(4, 1, sample=True))).sampled[0].token_id

    assert after(lambda runner: None) == after(lambda runner: None)
    assert after(lambda runner: None) != after(lambda runner: runner._blocks.write(3, [0], 1))


@contextmanager
def framed(checkpoint: Path) -> Iterator[tuple[FakeRunner, Window]]:
    """A runner with a window, whose block 0 is whole, and whose slot 0 owns it."""
    runner = FakeRunner(a_spec(checkpoint))
    assert runner.facts.kv_layout is not None
    with Window(runner.facts.kv_layout, 3) as window:
        runner.attach_frames(window.described())
        prompt = [*range(20)]
        new = NewSequence(Slot(0), RequestId("r"), prompt, [], params())
        runner.step(StepPlan(1, [], [new], [Row(Slot(0), 0, prompt, [0, 1], True)]))
        yield runner, window
        runner.close()


def copies(step: int, saves: list[tuple[int, int]], loads: list[tuple[int, int]]) -> StepPlan:
    """Pairs of block and frame."""
    saved, loaded = ([KvCopy(*pair) for pair in pairs] for pairs in (saves, loads))
    return StepPlan(step, [], [], [], saved, loaded)


def test_frames_hold_states(checkpoint: Path):
    with framed(checkpoint) as (runner, window):
        runner.step(copies(2, [(0, 2)], []))
        states = struct.unpack("<16Q", window.frame(2))
        assert states == tuple(runner._blocks.state_at(position, [0]) for position in range(16))
        assert 0 not in states


@pytest.mark.parametrize(
    ("saves", "loads", "words"),
    [
        ([(1, 0)], [], "block 1 is saved, but is not computed whole"),
        ([(7, 0)], [], "block 7 is saved, but is not computed whole"),
        ([(0, 3)], [], "frame 3 is none of 3"),
        ([(0, 1), (0, 1)], [], "a frame is saved to twice"),
        ([], [(5, 1)], "frame 1 is loaded, but holds no whole block"),
        ([(0, 1)], [(5, 1), (5, 1)], "a block is loaded twice"),
        ([(0, 1)], [(0, 1)], "block 0 is loaded, but is slot 0's"),
        ([(0, 1)], [(1000, 1)], "block 1000 is none of 64"),
        ([(0, 1)], [(5, -1)], "frame -1 is none of 3"),
    ],
)
def test_copies_that_must_not_be_are_found_out(
    checkpoint: Path, saves: list[tuple[int, int]], loads: list[tuple[int, int]], words: str
):
    with framed(checkpoint) as (runner, _), pytest.raises(PlanError, match=words):
        runner.step(copies(2, saves, loads))


def test_copies_without_a_window_are_found_out(checkpoint: Path):
    with framed(checkpoint) as (runner, _):
        runner.attach_frames(None)
        with pytest.raises(PlanError, match="step 2 has copies, but there is no window"):
            runner.step(copies(2, [(0, 1)], []))


def test_a_block_of_other_tokens_is_found_out_when_a_sequence_begins_with_it(checkpoint: Path):
    with framed(checkpoint) as (runner, _):
        runner.step(msgspec.structs.replace(copies(2, [(0, 1)], [(5, 1)]), freed_slots=[Slot(0)]))
        for step, first, is_right in ((3, 0, True), (4, 9, False)):
            prompt = [first, *range(1, 20)]
            new = NewSequence(Slot(step), RequestId("r"), prompt, [], params(), num_computed_tokens=16)
            plan = StepPlan(step, [], [msgspec.structs.replace(new, slot=Slot(step - 2))], [])
            plan = msgspec.structs.replace(plan, rows=[Row(Slot(step - 2), 16, prompt[16:], [5, 10 + step], True)])
            if is_right:
                runner.step(plan)
                continue
            with pytest.raises(PlanError, match="block 5 does not hold the KV of position 0"):
                runner.step(plan)


def test_a_block_of_other_tokens_is_found_out_also_if_the_sequence_has_its_first_row_later(checkpoint: Path):
    with framed(checkpoint) as (runner, _):
        new = NewSequence(Slot(1), RequestId("s"), [9, *range(1, 20)], [], params(), num_computed_tokens=16)
        runner.step(msgspec.structs.replace(copies(2, [(0, 1)], [(5, 1)]), new_sequences=[new]))
        with pytest.raises(PlanError, match="block 5 does not hold the KV of position 0"):
            runner.step(StepPlan(3, [], [], [Row(Slot(1), 16, new.prompt_token_ids[16:], [5, 6], True)]))


def test_adapters_make_other_models(checkpoint: Path, tmp_path: Path) -> None:
    adapters = [write_adapter(tmp_path / str(seed), seed=seed) for seed in range(3)]
    check_adapters(FakeRunner(a_spec(checkpoint, max_loras=2)), adapters)


def test_a_row_without_its_adapter_is_found_out(driver: Driver) -> None:
    sequence = driver.admit(0, PROMPT, params(), lora_id=LoraId(3))
    with pytest.raises(PlanError, match="adapter 3 is none of"):
        driver.step((sequence, 5))


def test_an_adapter_is_held_to_the_highest_rank(checkpoint: Path, tmp_path: Path) -> None:
    runner = FakeRunner(a_spec(checkpoint, max_loras=1, max_lora_rank=8))
    with pytest.raises(BadRequestError, match="rank 9 is not within 1 and 8"):
        runner.read_adapter(write_adapter(tmp_path, rank=9))
