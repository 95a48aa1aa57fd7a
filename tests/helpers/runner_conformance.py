"""What every Runner must do, whatever computes inside: `check_runner` is called by the tests of each implementation.

`Driver` is the smallest possible scheduler: it hands out blocks, builds plans, and keeps what came back. What a runner
does with adapters is in tests/helpers/adapter_conformance.py.
"""

from __future__ import annotations

import math
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import msgspec
import pytest

from actors.kv.window import Window
from gpu.runner import Runner
from protocol.errors import ConflictError
from protocol.ids import RequestId, Slot
from protocol.kv import KvLayout
from protocol.lora import NO_LORA, LoraId
from protocol.messages import TokenLogprobs
from protocol.operations import SleepTag
from protocol.pooling import Pooling, PoolingParams
from protocol.sampling import SamplingParams
from protocol.step import PENDING, KvCopy, NewSequence, Pooled, Row, Sampled, StepPlan, StepResult

MakeRunner = Callable[[], Runner]
"""Makes a fresh runner: at least 4 slots, 48 blocks, 64 tokens of context, 32 tokens of vocabulary."""


def params(max_tokens: int = 8, **changes: object) -> SamplingParams:
    """Greedy unless told otherwise, and nothing ends it early."""
    greedy = SamplingParams(max_tokens=max_tokens, seed=1234, temperature=0.0)
    return msgspec.structs.replace(greedy, **changes)


def vector_of(values: bytes) -> list[float]:
    """The numbers of an embedding."""
    return list(struct.unpack(f"<{len(values) // 4}f", values))


def only(token_ids: Sequence[int], vocab_size: int) -> bytes:
    """A grammar bitmask that allows just these tokens."""
    words = bytearray((vocab_size + 31) // 32 * 4)
    for token_id in token_ids:
        words[token_id // 8] |= 1 << (token_id % 8)
    return bytes(words)


@attrs.define(eq=False)
class Driven:
    """A sequence that the driver runs."""

    slot: Slot
    prompt: list[int]
    params: SamplingParams
    blocks: list[int]
    output: list[int]
    computed: int = 0
    sampled: list[Sampled] = attrs.field(factory=list)
    prompt_logprobs: list[TokenLogprobs] = attrs.field(factory=list)
    admitted: bool = False
    pooling: PoolingParams | None = None
    pooled: Pooled | None = None
    lora_id: LoraId = NO_LORA
    num_shared: int = 0
    """Blocks that it began with."""

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output


class Driver:
    """Runs sequences on a runner, plan by plan."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.plans = 0
        self._free = list(reversed(range(runner.facts.num_blocks)))
        self._freed_slots: list[Slot] = []
        self._shared: set[int] = set()

    def admit(
        self,
        slot: int,
        prompt: list[int],
        params: SamplingParams,
        output: Sequence[int] = (),
        lora_id: LoraId = NO_LORA,
    ) -> Driven:
        return Driven(Slot(slot), list(prompt), params, [], list(output), lora_id=lora_id)

    def admit_after(self, computed: Driven, slot: int, prompt: list[int], params: SamplingParams) -> Driven:
        """Shares the full blocks of the tokens that both begin with."""
        sequence = self.admit(slot, prompt, params, lora_id=computed.lora_id)
        alike = [a == b for a, b in zip(computed.tokens[: computed.computed], prompt[:-1], strict=False)]
        num_blocks = [*alike, False].index(False) // self.runner.facts.block_size
        sequence.blocks = computed.blocks[:num_blocks]
        sequence.computed = num_blocks * self.runner.facts.block_size
        self._shared.update(sequence.blocks)
        return sequence

    def admit_loaded(self, slot: int, like: Driven, wish: SamplingParams) -> Driven:
        """Begins with fresh blocks for as much of the same tokens as a sequence finds in a cache; its first step is to
        load them."""
        sequence = self.admit(slot, like.prompt, wish, lora_id=like.lora_id)
        num_blocks = (len(like.prompt) - 1) // self.runner.facts.block_size
        sequence.blocks = [self._free.pop() for _ in range(num_blocks)]
        sequence.computed = num_blocks * self.runner.facts.block_size
        return sequence

    def admit_to_pool(self, slot: int, prompt: list[int], pooling: PoolingParams) -> Driven:
        return Driven(Slot(slot), list(prompt), params(0), [], [], pooling=pooling)

    def free(self, sequence: Driven) -> None:
        """Shared blocks are not used again."""
        self._free.extend(block for block in sequence.blocks if block not in self._shared)
        self._freed_slots.append(sequence.slot)

    def step(
        self,
        *work: tuple[Driven, int],
        bitmasks: dict[Slot, bytes] | None = None,
        pending: bool = False,
        failing: Sequence[Driven] = (),
        drafts: dict[Slot, list[int]] | None = None,
        draft_bitmasks: dict[Slot, list[bytes]] | None = None,
        saves: Sequence[KvCopy] = (),
        loads: Sequence[KvCopy] = (),
    ) -> StepResult:
        """One plan that computes the next so many tokens of each sequence, sampling those that catch up.

        With `pending` the newest output tokens are not told. Those `failing` may have an error, and get a token that
        means nothing.
        """
        drafts = drafts or {}
        rows = [self._row(s, count, (bitmasks or {}).get(s.slot), drafts.get(s.slot, [])) for s, count in work]
        if draft_bitmasks:
            rows = [msgspec.structs.replace(row, draft_bitmasks=draft_bitmasks.get(row.slot, [])) for row in rows]
        new = [
            NewSequence(
                slot=s.slot,
                request_id=RequestId(f"r{s.slot}"),
                prompt_token_ids=list(s.prompt),
                output_token_ids=list(s.output),
                sampling_params=s.params,
                num_computed_tokens=s.computed,
                lora_id=s.lora_id,
                pooling=s.pooling,
            )
            for s, _ in work
            if not s.admitted
        ]
        if pending:
            rows = [self._without_last(s, row) for (s, _), row in zip(work, rows, strict=True)]
        self.plans += 1
        result = self.runner.step(StepPlan(self.plans, self._freed_slots, new, rows, list(saves), list(loads)))
        self._freed_slots = []
        self._take(result, [sequence for sequence, _ in work], rows, {sequence.slot for sequence in failing})
        return result

    def run(self, *sequences: Driven, chunk: int = 1_000_000) -> list[list[int]]:
        """Steps with all unfinished sequences at once until each has its max_tokens; returns their outputs."""
        while running := [s for s in sequences if len(s.output) < s.params.max_tokens]:
            self.step(*[(s, min(chunk, len(s.tokens) - s.computed)) for s in running])
        return [s.output for s in sequences]

    def pool(self, *sequences: Driven, chunk: int = 1_000_000) -> list[bytes]:
        """Steps with all of them at once until each has its vector; frees them and returns these."""
        while running := [s for s in sequences if s.pooled is None]:
            self.step(*[(s, min(chunk, len(s.prompt) - s.computed)) for s in running])
        for sequence in sequences:
            self.free(sequence)
        assert all(s.pooled is not None and s.pooled.error is None for s in sequences)
        return [s.pooled.values for s in sequences if s.pooled is not None]

    def _row(self, sequence: Driven, count: int, bitmask: bytes | None, drafts: list[int]) -> Row:
        block_size = self.runner.facts.block_size
        end = sequence.computed + count
        while len(sequence.blocks) * block_size < end + len(drafts):
            sequence.blocks.append(self._free.pop())
        return Row(
            sequence.slot,
            sequence.computed,
            sequence.tokens[sequence.computed : end] + drafts,
            list(sequence.blocks),
            end == len(sequence.tokens) and sequence.pooling is None,
            bitmask,
            len(drafts),
        )

    def _without_last(self, sequence: Driven, row: Row) -> Row:
        if not sequence.output or not row.sample:
            return row
        return msgspec.structs.replace(row, token_ids=[*row.token_ids[:-1], PENDING])

    def _take(self, result: StepResult, sequences: list[Driven], rows: list[Row], failing: set[Slot]) -> None:
        assert result.step == self.plans
        assert [s.slot for s in result.sampled] == [row.slot for row in rows if row.sample]
        by_slot = {s.slot: s for s in sequences}
        drafts_of = {row.slot: row.token_ids[len(row.token_ids) - row.num_drafts :] for row in rows}
        for sequence, row in zip(sequences, rows, strict=True):
            sequence.admitted = True
            sequence.computed += len(row.token_ids) - row.num_drafts
        starts = {row.slot: row.start for row in rows}
        for logprobs in result.prompt_logprobs:
            assert logprobs.start == starts[logprobs.slot]
            by_slot[logprobs.slot].prompt_logprobs.extend(logprobs.rows)
        complete = [
            row.slot for s, row in zip(sequences, rows, strict=True) if s.pooling and s.computed == len(s.prompt)
        ]
        assert [pooled.slot for pooled in result.pooled] == complete
        for pooled in result.pooled:
            by_slot[pooled.slot].pooled = pooled
        for sampled in result.sampled:
            if sampled.slot in failing:
                by_slot[sampled.slot].output.append(0)
                continue
            assert sampled.error is None, sampled.error
            assert 0 <= sampled.token_id < self.runner.facts.vocab_size
            by_slot[sampled.slot].sampled.append(sampled)
            by_slot[sampled.slot].computed += sampled.num_accepted
            by_slot[sampled.slot].output += drafts_of[sampled.slot][: sampled.num_accepted]
            by_slot[sampled.slot].output.append(sampled.token_id)


def check_runner(make_runner: MakeRunner) -> None:
    """Fails with an assertion at the first thing that a Runner must do and this one does not."""
    for check in CHECKS:
        runner = make_runner()
        try:
            check(make_runner, Driver(runner))
        finally:
            runner.close()


def check_facts(make_runner: MakeRunner, driver: Driver) -> None:
    facts = driver.runner.facts
    assert facts.vocab_size >= 32
    assert facts.max_model_len >= 64
    assert facts.num_blocks * facts.block_size >= facts.max_model_len


def check_same_plans_give_same_results(make_runner: MakeRunner, driver: Driver) -> None:
    other = Driver(make_runner())
    wish = params(temperature=1.0, logprobs=2)
    for chunks in [(5, 3), (2, 4), (1, 1), (1, 1)]:
        if chunks == (5, 3):
            rows = [[d.admit(0, a_prompt(d, 7), wish), d.admit(2, a_prompt(d, 7, 5), wish)] for d in (driver, other)]
        results = [d.step(*zip(r, chunks, strict=True)) for d, r in zip((driver, other), rows, strict=True)]
        assert results[0] == results[1]
    other.runner.close()


def check_empty_plan(make_runner: MakeRunner, driver: Driver) -> None:
    assert driver.step() == StepResult(1, [])


def check_results_follow_row_order(make_runner: MakeRunner, driver: Driver) -> None:
    first = driver.admit(3, a_prompt(driver, 6), params())
    second = driver.admit(1, a_prompt(driver, 9), params())
    third = driver.admit(0, a_prompt(driver, 4), params())
    result = driver.step((first, 6), (second, 5), (third, 4))
    assert [s.slot for s in result.sampled] == [3, 0]
    result = driver.step((third, 1), (second, 4), (first, 1))
    assert [s.slot for s in result.sampled] == [0, 1, 3]


def check_tokens_do_not_depend_on_chunks_or_company(make_runner: MakeRunner, driver: Driver) -> None:
    for temperature in (0.0, 0.8):
        wish = params(10, temperature=temperature)
        prompts = [a_prompt(driver, length, length) for length in (1, 15, 16, 17, 33)]
        alone = []
        for prompt in prompts:
            sequence = driver.admit(0, prompt, wish)
            alone += driver.run(sequence)
            driver.free(sequence)
        for chunk in (1, 7, 16):
            sequences = [driver.admit(slot, prompt, wish) for slot, prompt in enumerate(prompts[1:])]
            assert driver.run(*sequences, chunk=chunk) == alone[1:], f"chunks of {chunk}"
            for sequence in sequences:
                driver.free(sequence)


def check_freed_slot_forgets(make_runner: MakeRunner, driver: Driver) -> None:
    wish = params(12, temperature=0.7)
    before = driver.admit(1, a_prompt(driver, 40, 3), params(5, temperature=1.5, seed=99))
    driver.run(before)
    driver.free(before)
    after = driver.admit(1, a_prompt(driver, 11), wish)
    fresh = Driver(make_runner())
    assert driver.run(after) == fresh.run(fresh.admit(1, a_prompt(fresh, 11), wish))
    fresh.runner.close()


def check_resumed_sequence_goes_on(make_runner: MakeRunner, driver: Driver) -> None:
    for temperature in (0.0, 0.9):
        wish = params(14, temperature=temperature)
        whole = driver.admit(0, a_prompt(driver, 13), wish)
        driver.run(whole)
        driver.free(whole)
        resumed = driver.admit(2, a_prompt(driver, 13), wish, whole.output[:5])
        driver.run(resumed, chunk=8)
        driver.free(resumed)
        assert resumed.output == whole.output


def check_pending_tokens_are_those_sampled_before(make_runner: MakeRunner, driver: Driver) -> None:
    for wish in (
        params(8),
        params(8, temperature=0.9, frequency_penalty=1.0, logprobs=1, bad_words_token_ids=[[3, 4]]),
    ):
        known = driver.admit(0, a_prompt(driver, 13), wish)
        driver.run(known)
        driver.free(known)
        pending = driver.admit(1, a_prompt(driver, 13), wish)
        driver.step((pending, 13))
        beside = driver.admit(2, a_prompt(driver, 5), params(20))
        driver.step((pending, 1), (beside, 5), pending=True)
        while len(pending.output) < 8:
            driver.step((beside, 1), (pending, 1), pending=True)
        assert [s.token_id for s in pending.sampled] == known.output
        for sequence in (pending, beside):
            driver.free(sequence)


def check_a_void_row_does_no_harm(make_runner: MakeRunner, driver: Driver) -> None:
    """Its slot could not sample in the step before, which the plan did not know yet."""
    vocab_size = driver.runner.facts.vocab_size
    expected = driver.admit(0, a_prompt(driver, 9), params(5, temperature=0.9))
    driver.run(expected)
    driver.free(expected)
    good = driver.admit(0, a_prompt(driver, 9), params(5, temperature=0.9))
    bad = driver.admit(1, a_prompt(driver, 6), params())
    driver.step((bad, 6), (good, 9), bitmasks={Slot(1): only([], vocab_size)}, failing=[bad])
    driver.step((good, 1), (bad, 1), pending=True, failing=[bad])
    driver.free(bad)
    driver.run(good)
    assert good.output == expected.output


def check_drafts_change_no_token(make_runner: MakeRunner, driver: Driver) -> None:
    """Whether they are all right, right at first, or wrong from the first one on."""
    wishes = [
        params(12),
        params(12, temperature=0.9, logprobs=1),
        params(12, temperature=1.1, frequency_penalty=1.5, repetition_penalty=1.3, min_tokens=9, stop_token_ids=[5]),
        params(12, bad_words_token_ids=[[7], [1, 2]], presence_penalty=-1.0, logit_bias={3: 4.0, 4: 4.0}),
    ]
    vocab_size = driver.runner.facts.vocab_size
    for wish in wishes:
        plain = driver.admit(0, a_prompt(driver, 15), wish)
        driver.run(plain)
        driver.free(plain)
        guessed = driver.admit(1, a_prompt(driver, 15), wish)
        beside = driver.admit(2, a_prompt(driver, 6, 2), params(20))
        driver.step((guessed, 15), (beside, 6))
        for num_right, num_drafts in ((3, 3), (1, 4), (0, 2), (2, 3)):
            known = len(guessed.output)
            right = plain.output[known : known + num_right]
            wrong = [(token_id + 1) % vocab_size for token_id in plain.output[known + num_right : known + num_drafts]]
            result = driver.step((beside, 1), (guessed, 1), drafts={Slot(1): right + wrong})
            sampled = result.sampled[1]
            assert sampled.num_accepted == len(right)
            assert guessed.output == plain.output[: known + len(right) + 1]
            assert len(sampled.accepted_logprobs) == (0 if wish.logprobs is None else len(right))
            for logprobs, token_id in zip(sampled.accepted_logprobs, right, strict=False):
                _check_position(logprobs, token_id, 1)
        driver.run(guessed)
        assert guessed.output == plain.output
        for sequence in (guessed, beside):
            driver.free(sequence)


def check_shared_blocks_begin_a_sequence(make_runner: MakeRunner, driver: Driver) -> None:
    """Also while their first owner goes on, and after it has left."""
    wish = params(6, temperature=0.8)
    first = driver.admit(0, a_prompt(driver, 40), params(12))
    driver.step((first, 40))
    prompt = [*first.tokens[:33], 5, 6, 7]
    expected = driver.admit(1, prompt, wish)
    driver.run(expected)
    driver.free(expected)
    beside = driver.admit_after(first, 2, prompt, wish)
    assert beside.computed > 0
    while len(beside.output) < 6:
        driver.step((beside, len(beside.tokens) - beside.computed), (first, 1))
    driver.free(first)
    after = driver.admit_after(beside, 3, prompt, wish)
    driver.run(after, chunk=3)
    assert expected.output == beside.output == after.output


def check_blocks_come_back_from_frames(make_runner: MakeRunner, driver: Driver) -> None:
    """To the last bit what they were, in other blocks, after a sleep in which all that the pool held was lost."""
    wish = params(5, temperature=0.9, logprobs=2)
    computed, sharing = _computed_and_shared(driver, wish)
    with _window(driver.runner) as window:
        driver.runner.attach_frames(window.described())
        # Each into another frame than its number, and in a plan of their own.
        saves = [KvCopy(block, 20 - index) for index, block in enumerate(sharing.blocks[: sharing.num_shared])]
        assert driver.step(saves=saves).sampled == []
        driver.free(computed)
        assert driver.runner.sleep(2)
        assert driver.runner.wake(list(SleepTag)) == []
        beside = driver.admit(3, a_prompt(driver, 9, 4), params(20))
        loaded = driver.admit_loaded(2, sharing, wish)
        assert len(loaded.blocks) == len(saves)
        loads = [KvCopy(block, save.frame) for block, save in zip(loaded.blocks, saves, strict=True)]
        driver.step(loads=loads[:1])
        driver.step((loaded, len(loaded.prompt) - loaded.computed), loads=loads[1:])
        driver.step((beside, 9))
        driver.run(loaded)
    assert loaded.sampled == [msgspec.structs.replace(one, slot=Slot(2)) for one in sharing.sampled]


def check_saves_come_before_loads_and_these_before_rows(make_runner: MakeRunner, driver: Driver) -> None:
    """Of one plan, which also overwrites what it saves, and begins with what it loads."""
    wish = params(5, temperature=0.9, logprobs=2)
    computed, sharing = _computed_and_shared(driver, wish)
    driver.free(computed)
    saved = sharing.blocks[: sharing.num_shared]
    with _window(driver.runner) as window:
        driver.runner.attach_frames(window.described())
        loaded = driver.admit_loaded(2, sharing, wish)
        over = driver.admit(3, a_prompt(driver, 40, 4), params(20))
        over.blocks = list(saved)
        driver.step(
            (over, 40),
            (loaded, len(loaded.prompt) - loaded.computed),
            saves=[KvCopy(block, index) for index, block in enumerate(saved)],
            loads=[KvCopy(block, index) for index, block in enumerate(loaded.blocks)],
        )
        driver.runner.attach_frames(None)
        driver.runner.attach_frames(None)
        driver.run(loaded)
    assert loaded.sampled[0].token_id == sharing.sampled[0].token_id
    assert loaded.output == sharing.output


def check_a_window_that_is_gone_leaves_a_runner_without_one(make_runner: MakeRunner, driver: Driver) -> None:
    sequence = driver.admit(0, a_prompt(driver, 20), params(3))
    with _window(driver.runner) as window:
        gone = window.described()
        driver.runner.attach_frames(gone)
    driver.step((sequence, 20))
    block = KvCopy(sequence.blocks[0], 1)
    driver.step((sequence, 1), saves=[block])  # who has it mapped keeps it
    for described in (
        gone,
        msgspec.structs.replace(gone, path="/proc/self/exe"),
        msgspec.structs.replace(gone, layout=KvLayout(b"another", 16, [64])),
    ):
        with pytest.raises(OSError, match=r"."):
            driver.runner.attach_frames(described)
    driver.run(sequence)
    with pytest.raises((AssertionError, ValueError)):
        driver.step(saves=[block])


def _computed_and_shared(driver: Driver, wish: SamplingParams) -> tuple[Driven, Driven]:
    """A sequence, and one behind it that has begun with its blocks, run, and is freed: what one that begins with loaded
    blocks has to be like."""
    computed = driver.admit(0, a_prompt(driver, 40), params(1))
    driver.run(computed)
    sharing = driver.admit_after(computed, 1, [*computed.prompt[:33], 5, 6, 7], wish)
    sharing.num_shared = len(sharing.blocks)
    assert sharing.num_shared > 0
    driver.run(sharing)
    driver.free(sharing)
    return computed, sharing


def _window(runner: Runner) -> Window:
    assert runner.facts.kv_layout is not None
    return Window(runner.facts.kv_layout, 24)


def check_logprobs_shapes(make_runner: MakeRunner, driver: Driver) -> None:
    for count in (None, 0, 3):
        sequence = driver.admit(0, a_prompt(driver, 9), params(4, temperature=0.9, logprobs=count))
        driver.run(sequence)
        driver.free(sequence)
        for sampled in sequence.sampled:
            if count is None:
                assert sampled.logprobs is None
            else:
                _check_position(sampled.logprobs, sampled.token_id, count)


def check_prompt_logprobs_cover_the_prompt(make_runner: MakeRunner, driver: Driver) -> None:
    prompt = a_prompt(driver, 19)
    whole = []
    for count, chunk in ((0, 100), (2, 100), (2, 5), (2, 1)):
        sequence = driver.admit(0, prompt, params(2, prompt_logprobs=count))
        driver.run(sequence, chunk=chunk)
        driver.free(sequence)
        assert len(sequence.prompt_logprobs) == len(prompt) - 1
        for logprobs, token_id in zip(sequence.prompt_logprobs, prompt[1:], strict=True):
            _check_position(logprobs, token_id, count)
        if count == 2:
            whole.append([logprobs.token_ids for logprobs in sequence.prompt_logprobs])
    assert whole[0] == whole[1] == whole[2]


def check_grammar_bitmask_binds(make_runner: MakeRunner, driver: Driver) -> None:
    vocab_size = driver.runner.facts.vocab_size
    for allowed in (0, 31, vocab_size - 1):
        sequences = [driver.admit(0, a_prompt(driver, 5), params()), driver.admit(1, a_prompt(driver, 6), params())]
        driver.step((sequences[0], 5), (sequences[1], 6), bitmasks={Slot(1): only([allowed], vocab_size)})
        assert sequences[1].output == [allowed]
        for sequence in sequences:
            driver.free(sequence)


def check_drafts_of_a_grammar_change_no_token(make_runner: MakeRunner, driver: Driver) -> None:
    """The mask of each place is its own, and what is drafted is allowed there."""
    vocab_size = driver.runner.facts.vocab_size
    slot = Slot(1)

    def allowed(place: int) -> list[int]:
        return [(37 * place + 11 * index) % vocab_size for index in range(6)]

    for wish in (params(12), params(12, temperature=0.9, logprobs=1, repetition_penalty=1.3)):
        plain = driver.admit(1, a_prompt(driver, 15), wish)
        driver.step((plain, 15), bitmasks={slot: only(allowed(0), vocab_size)})
        while len(plain.output) < 12:
            driver.step((plain, 1), bitmasks={slot: only(allowed(len(plain.output)), vocab_size)})
        driver.free(plain)
        guessed = driver.admit(1, a_prompt(driver, 15), wish)
        beside = driver.admit(2, a_prompt(driver, 6, 2), params(20))
        driver.step((guessed, 15), (beside, 6), bitmasks={slot: only(allowed(0), vocab_size)})
        for num_right, num_drafts in ((3, 3), (1, 4), (0, 2), (2, 3)):
            known = len(guessed.output)
            masks = [only(allowed(known + index), vocab_size) for index in range(num_drafts + 1)]
            drafts = plain.output[known : known + num_right]
            for place in range(known + num_right, known + num_drafts):
                drafts.append(next(token_id for token_id in allowed(place) if token_id != plain.output[place]))
            result = driver.step(
                (beside, 1),
                (guessed, 1),
                bitmasks={slot: masks[0]},
                drafts={slot: drafts},
                draft_bitmasks={slot: masks[1:]},
            )
            assert result.sampled[1].num_accepted == num_right
            assert guessed.output == plain.output[: known + num_right + 1]
        for sequence in (guessed, beside):
            driver.free(sequence)


def check_vectors_do_not_depend_on_chunks_or_company(make_runner: MakeRunner, driver: Driver) -> None:
    prompts = [a_prompt(driver, length, length) for length in (1, 17, 33)]
    poolings = [PoolingParams(kind, normalize=kind is not Pooling.MEAN) for kind in Pooling]
    beside = driver.admit(3, a_prompt(driver, 9, 2), params(30))
    driver.step((beside, 9))
    for order in (poolings, poolings[::-1]):
        cases = list(zip(prompts, order, strict=True))
        alone = [driver.pool(driver.admit_to_pool(0, *case))[0] for case in cases]
        together = [driver.admit_to_pool(slot, *case) for slot, case in enumerate(cases)]
        driver.step((beside, 1), *[(sequence, min(7, len(sequence.prompt))) for sequence in together])
        for found, expected in zip(driver.pool(*together, chunk=7), alone, strict=True):
            assert vector_of(found) == pytest.approx(vector_of(expected), abs=1e-4)
    driver.free(beside)


def check_vectors_are_cut_and_then_normalised(make_runner: MakeRunner, driver: Driver) -> None:
    size = driver.runner.facts.hidden_size
    prompt = a_prompt(driver, 12)
    for kind in Pooling:
        raw, whole, cut = (
            vector_of(driver.pool(driver.admit_to_pool(0, prompt, PoolingParams(kind, normalize, dimensions)))[0])
            for normalize, dimensions in ((False, None), (True, None), (True, 5))
        )
        assert (len(raw), len(whole), len(cut)) == (size, size, 5)
        for found, numbers in ((whole, raw), (cut, raw[:5])):
            length = math.hypot(*numbers)
            assert found == pytest.approx([number / length for number in numbers], rel=1e-5)


def check_shared_blocks_change_no_vector(make_runner: MakeRunner, driver: Driver) -> None:
    """Of the last token: that alone needs no state of those before it."""
    first = driver.admit(0, a_prompt(driver, 40), params(2))
    driver.run(first)
    prompt, last = [*first.tokens[:33], 5, 6, 7], PoolingParams(Pooling.LAST)
    (expected,) = driver.pool(driver.admit_to_pool(1, prompt, last))
    sharing = driver.admit_after(first, 2, prompt, params(0))
    sharing.pooling = last
    assert sharing.computed > 0
    (found,) = driver.pool(sharing, chunk=2)
    assert vector_of(found) == pytest.approx(vector_of(expected), abs=1e-4)
    driver.free(first)


def check_sleep_changes_no_token(make_runner: MakeRunner, driver: Driver) -> None:
    """What was computed is gone, and what the slots know is not: sequences are computed again in other slots."""
    wish = params(9, temperature=0.9)
    expected = driver.admit(0, a_prompt(driver, 21), wish)
    driver.run(expected)
    driver.free(expected)
    both = [[SleepTag.KV_CACHE, SleepTag.WEIGHTS]]
    each = [[SleepTag.WEIGHTS], [SleepTag.KV_CACHE]]
    for levels, wakes in (([1], both), ([2], both), ([2], each), ([2], each[::-1]), ([1, 2, 1], both)):
        interrupted = driver.admit(1, a_prompt(driver, 21), wish)
        driver.step((interrupted, 21))
        driver.step((interrupted, 1))
        for level in levels:
            asleep = driver.runner.sleep(level)
        assert SleepTag.KV_CACHE in asleep
        for tags in wakes:
            asleep = driver.runner.wake(tags)
            assert set(asleep).isdisjoint(tags)
        assert asleep == []
        driver.free(interrupted)
        resumed = driver.admit(2, a_prompt(driver, 21), wish, interrupted.output)
        driver.run(resumed)
        driver.free(resumed)
        assert resumed.output == expected.output, f"levels {levels}, woken as {wakes}"


def check_a_sleep_of_level_0_gives_nothing_back(make_runner: MakeRunner, driver: Driver) -> None:
    sequence = driver.admit(0, a_prompt(driver, 8), params())
    driver.step((sequence, 8))
    assert driver.runner.sleep(0) == []
    driver.step((sequence, 1))
    assert driver.runner.wake([SleepTag.KV_CACHE]) == []
    driver.step((sequence, 1))


def check_a_profile_is_written_where_it_was_asked_for(make_runner: MakeRunner, driver: Driver) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "new" / "profile.json"
        with pytest.raises(ConflictError):
            driver.runner.stop_profile()
        assert driver.runner.start_profile(path).path == str(path)
        with pytest.raises(ConflictError):
            driver.runner.start_profile(path)
        driver.run(driver.admit(0, a_prompt(driver, 5), params(3)))
        state = driver.runner.stop_profile()
        assert (state.path, state.num_steps, state.is_cut_off) == (str(path), 3, False)
        names = [event.get("name") for event in msgspec.json.decode(path.read_bytes())["traceEvents"]]
        assert {f"step {number}, 1 rows" for number in (1, 2, 3)} <= set(names)
        assert path.parent.stat().st_mode & 0o777 == 0o700


def check_close_is_idempotent(make_runner: MakeRunner, driver: Driver) -> None:
    driver.runner.close()
    driver.runner.close()


CHECKS: tuple[Callable[[MakeRunner, Driver], None], ...] = (
    check_facts,
    check_same_plans_give_same_results,
    check_empty_plan,
    check_results_follow_row_order,
    check_tokens_do_not_depend_on_chunks_or_company,
    check_freed_slot_forgets,
    check_resumed_sequence_goes_on,
    check_pending_tokens_are_those_sampled_before,
    check_a_void_row_does_no_harm,
    check_drafts_change_no_token,
    check_shared_blocks_begin_a_sequence,
    check_blocks_come_back_from_frames,
    check_saves_come_before_loads_and_these_before_rows,
    check_a_window_that_is_gone_leaves_a_runner_without_one,
    check_logprobs_shapes,
    check_prompt_logprobs_cover_the_prompt,
    check_grammar_bitmask_binds,
    check_drafts_of_a_grammar_change_no_token,
    check_vectors_do_not_depend_on_chunks_or_company,
    check_vectors_are_cut_and_then_normalised,
    check_shared_blocks_change_no_vector,
    check_sleep_changes_no_token,
    check_a_sleep_of_level_0_gives_nothing_back,
    check_a_profile_is_written_where_it_was_asked_for,
    check_close_is_idempotent,
)


def a_prompt(driver: Driver, length: int, salt: int = 0) -> list[int]:
    vocab_size = driver.runner.facts.vocab_size
    return [(index * index * 7 + index * 13 + salt * 5 + 3) % vocab_size for index in range(length)]


def _check_position(logprobs: TokenLogprobs | None, token_id: int, count: int) -> None:
    assert logprobs is not None
    assert len(logprobs.token_ids) == len(logprobs.logprobs) == count + 1
    assert logprobs.token_ids[0] == token_id
    assert all(value <= 1e-6 for value in logprobs.logprobs)
    best = logprobs.logprobs[1:]
    assert best == sorted(best, reverse=True)
    assert logprobs.rank >= 1
    if logprobs.rank <= count:
        assert best[logprobs.rank - 1] == logprobs.logprobs[0]
