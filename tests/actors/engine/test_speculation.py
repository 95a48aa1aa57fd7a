"""Guessing changes how many steps it takes, and nothing that a client sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.engine.block_hashes import BlockHashes
from actors.engine.ngrams import NgramIndex
from actors.engine.proposer import NgramProposer, make_proposer
from actors.engine.scheduler import Scheduler
from actors.engine.sequence import Sequence
from actors.engine.shares import MOST_JUMPING
from protocol.ids import Slot
from protocol.messages import EngineCoreOutput, FinishReason
from protocol.sampling import Grammar
from protocol.spec import SpeculativeSpec
from protocol.step import Sampled, StepResult
from tests.helpers.scheduling import DRAFTS, EOS, Bench, Oracle, ScriptedGrammar, a_config, a_request, alone

LOOKUP = SpeculativeSpec(num_speculative_tokens=4, prompt_lookup_max=3, prompt_lookup_min=1)


def guessing(tiny: Path, **config: object) -> Bench:
    """Its guesses are what really comes, with errors."""
    return Bench(
        tiny, a_config(**config), proposer=Oracle(lambda request: alone(tiny, request).tokens(request.request_id))
    )


def told(outputs: list[EngineCoreOutput]) -> tuple[object, ...]:
    """All outputs of a request as one."""
    last = outputs[-1]
    return (
        [token_id for output in outputs for token_id in output.new_token_ids],
        [entry for output in outputs for entry in output.logprobs or []],
        [output.prompt_logprobs for output in outputs if output.prompt_logprobs],
        (last.finish_reason, last.stop_reason, last.error),
    )


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"temperature": 1.0, "logprobs": 2},
        {"temperature": 0.8, "frequency_penalty": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.5},
        {"bad_words_token_ids": [[9], [10, 11]], "logit_bias": {12: 5.0, 13: 5.0}},
        {"temperature": 1.0, "eos_token_ids": [EOS], "min_tokens": 6, "prompt_logprobs": 1},
        {"temperature": 1.0, "stop_token_ids": list(range(20, 30)), "min_tokens": 3, "logprobs": 0},
        {"max_tokens": 1},
        {"max_tokens": 0, "prompt_logprobs": 1},
    ],
)
def test_a_client_sees_what_it_sees_without_guesses(tiny: Path, wish: dict):
    request = a_request("a", range(3, 12), **{"max_tokens": 25, **wish})
    bench = guessing(tiny)
    bench.add(request)
    bench.add(a_request("b", [9, 8], max_tokens=9))
    bench.run()
    assert told(bench.outputs["a"]) == told(alone(tiny, request).outputs["a"])


def test_right_guesses_save_steps_and_are_counted(tiny: Path):
    bench = guessing(tiny)
    bench.add(a_request(max_tokens=30))
    bench.run()
    stats = bench.scheduler.stats()
    assert len(bench.plans) == 30 - stats.spec_decode_num_accepted_tokens
    assert 0 < stats.spec_decode_num_accepted_tokens < stats.spec_decode_num_draft_tokens
    assert stats.spec_decode_num_drafts == sum(row.num_drafts > 0 for plan in bench.plans for row in plan.rows)
    assert stats.generation_tokens == 30


def test_tokens_after_one_that_ends_the_sequence_are_dropped(tiny: Path):
    tokens = alone(tiny, a_request(max_tokens=30)).tokens("a")
    for stop in set(tokens):
        bench = guessing(tiny)
        request = a_request(max_tokens=30, stop_token_ids=[stop])
        bench.add(request)
        bench.run()
        assert bench.tokens("a") == tokens[: tokens.index(stop) + 1]
        assert bench.reason("a") is FinishReason.STOP
        assert bench.scheduler.stats().kv_blocks_used == 0


def test_no_block_is_published_that_only_dropped_guesses_have_filled():
    class Fixed:
        def propose(self, sequence: Sequence, count: int) -> list[int]:
            return [9, 8, 8, 8]

    scheduler = Scheduler(a_config(), Fixed())
    scheduler.add(a_request(prompt=[5, 6, 7], max_tokens=20, stop_token_ids=[9]))
    first = scheduler.schedule(now=0.0)
    assert first is not None
    scheduler.commit(first, StepResult(first.step, [Sampled(Slot(0), 4)]))
    second = scheduler.schedule(now=0.0)
    assert second is not None
    ((_, output),) = scheduler.commit(second, StepResult(second.step, [Sampled(Slot(0), 8, num_accepted=4)]))
    assert (output.new_token_ids, output.finish_reason) == ([9], FinishReason.STOP)
    assert [*scheduler._pool._by_hash] == BlockHashes(4, "").up_to([5, 6, 7, 4], 4)


def test_blocks_filled_by_right_guesses_are_shared_with_the_next_turn(tiny: Path):
    """The dummy runner checks what lies in them."""
    bench = guessing(tiny)
    bench.add(a_request("a", range(3, 9), max_tokens=18))
    bench.run()
    second = a_request("b", [*range(3, 9), *bench.tokens("a"), 5], max_tokens=9)
    bench.add(second)
    bench.run()
    assert bench.outputs["b"][0].num_cached_tokens == 20
    assert bench.tokens("b") == alone(tiny, second).tokens("b")


def test_guesses_take_only_what_is_left_of_the_step_and_of_the_blocks(tiny: Path):
    bench = guessing(tiny, max_num_batched_tokens=4, num_blocks=12, max_num_seqs=3)
    requests = [a_request(name, [base, 7], max_tokens=14) for name, base in (("a", 5), ("b", 6), ("c", 7))]
    for request in requests:
        bench.add(request)
    bench.run()
    assert bench.scheduler.stats().num_preemptions == 0
    assert max(sum(len(row.token_ids) for row in plan.rows) for plan in bench.plans) == 4
    for request in requests:
        assert bench.tokens(request.request_id) == alone(tiny, request).tokens(request.request_id)


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"temperature": 1.0, "logprobs": 2, "frequency_penalty": 1.0},
        {"temperature": 1.0, "stop_token_ids": [12, 13], "min_tokens": 7},
        {"max_tokens": 6},
        {"allowed_token_ids": [*range(3, 12)]},  # at last there is nothing that may come
    ],
)
def test_what_a_grammar_foresees_changes_no_token(tiny: Path, wish: dict, others: bool):
    script = [9, 8, 7, 6, 5, 4, 5, 6, 7, 8, 9, 12, 20, 3]
    request = a_request("a", **{"max_tokens": 30, "grammar": Grammar("scripted"), **wish})
    benches = [Bench(tiny, a_config(jumps_ahead=jumps_ahead)) for jumps_ahead in (False, True)]
    for bench in benches:
        bench.add(request, ScriptedGrammar(script, others=others, foresees=True))
        bench.add(a_request("b", [9, 8], max_tokens=9))
        bench.run()
    plain, jumping = benches
    assert told(jumping.outputs["a"]) == told(plain.outputs["a"])
    assert jumping.tokens("b") == plain.tokens("b")
    assert not any(row.num_drafts for plan in plain.plans for row in plan.rows)
    assert any(row.num_drafts for plan in jumping.plans for row in plan.rows)
    assert jumping.scheduler.stats().spec_decode_num_drafts == 0


def test_forced_tokens_take_one_step(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request(grammar=Grammar("scripted"), max_tokens=20), ScriptedGrammar(range(7, 15), foresees=True))
    bench.run()
    assert bench.tokens("a") == [*range(7, 15)]
    assert [row.num_drafts for plan in bench.plans for row in plan.rows] == [0, 6]


def test_grammars_are_not_asked_what_they_foresee_where_many_decode(tiny: Path):
    bench = Bench(tiny, a_config(max_num_seqs=8))
    for index in range(MOST_JUMPING + 1):
        grammar = ScriptedGrammar([7, 8, 9, 7, 8, 9], foresees=True)
        bench.add(a_request(str(index), grammar=Grammar("scripted"), max_tokens=20), grammar)
    bench.run()
    assert not any(row.num_drafts for plan in bench.plans for row in plan.rows)


def test_a_row_with_a_grammar_has_no_guesses(tiny: Path):
    script = [7, 8, 7, 8, 7, 8, 7, 8]
    bench = Bench(tiny, a_config(), proposer=NgramProposer(LOOKUP))
    bench.add(a_request(grammar=Grammar("scripted"), max_tokens=20), ScriptedGrammar(script))
    bench.run()
    assert bench.tokens("a") == script
    assert bench.scheduler.stats().spec_decode_num_drafts == 0


def test_nothing_is_planned_ahead_of_tokens_that_guesses_need(tiny: Path):
    bench = guessing(tiny)
    bench.add(a_request())
    plan = bench.schedule()
    assert plan is not None
    assert bench.schedule() is None


def test_an_answer_that_repeats_itself_is_guessed_by_lookup(tiny: Path):
    request = a_request(prompt=[5, 6, 7], max_tokens=40, allowed_token_ids=[8, 9], frequency_penalty=-2.0)
    bench = Bench(tiny, a_config(), proposer=NgramProposer(LOOKUP))
    bench.add(request)
    bench.run()
    assert bench.tokens("a") == alone(tiny, request).tokens("a")
    assert bench.scheduler.stats().spec_decode_num_accepted_tokens > 15


# ------------------------------------------------------------------ a draft model


@pytest.mark.parametrize("wish", [{}, {"temperature": 0.3, "seed": 5}, {"stop_token_ids": [*range(20, 30)]}])
def test_what_the_runners_draft_model_says_is_tried_in_the_next_step(tiny: Path, wish: dict):
    request = a_request(**{"max_tokens": 30, **wish})
    bench = Bench(tiny, a_config(), speculative=DRAFTS)
    bench.add(request)
    bench.run()
    assert told(bench.outputs["a"]) == told(alone(tiny, request).outputs["a"])
    stats = bench.scheduler.stats()
    assert 0 < stats.spec_decode_num_accepted_tokens < stats.spec_decode_num_draft_tokens
    assert len(bench.plans) == len(bench.tokens("a")) - stats.spec_decode_num_accepted_tokens


def test_a_sequence_is_guessed_for_by_what_came_with_its_own_last_token():
    scheduler = Scheduler(a_config(), make_proposer(DRAFTS))
    scheduler.add(a_request("a", max_tokens=20))
    scheduler.add(a_request("b", max_tokens=20))
    first = scheduler.schedule(now=0.0)
    assert first is not None
    sampled = [Sampled(Slot(0), 4), Sampled(Slot(1), 5)]
    scheduler.commit(first, StepResult(first.step, sampled, drafts=[[8, 9], [10]]))
    second = scheduler.schedule(now=0.0)
    assert second is not None
    assert [(row.token_ids, row.num_drafts) for row in second.rows] == [([4, 8, 9], 2), ([5, 10], 1)]
    scheduler.commit(second, StepResult(second.step, sampled, drafts=[[], [11]]))
    third = scheduler.schedule(now=0.0)
    assert third is not None
    assert [(row.token_ids, row.num_drafts) for row in third.rows] == [([4], 0), ([5, 11], 1)]


# ------------------------------------------------------------------ lookup


@pytest.mark.parametrize(
    ("token_ids", "sizes", "found"),
    [
        ([1, 2, 3], range(1, 3), None),
        ([1, 2, 3, 1], range(1, 3), 1),
        ([1, 2, 9, 5, 2, 7, 1, 2], range(1, 3), 2),  # the longer one, though the shorter one came later
        ([1, 2, 9, 1, 2, 7, 1, 2], range(2, 3), 5),  # the latest
        ([1, 2, 1], range(2, 3), None),
        ([4, 4], range(1, 4), 1),
        ([4], range(1, 4), None),
    ],
)
def test_the_longest_ngram_that_was_there_before_is_found_where_it_was_last(
    token_ids: list, sizes: range, found: int | None
):
    assert NgramIndex(sizes).find_earlier(token_ids) == found
    growing = NgramIndex(sizes)
    for end in range(1, len(token_ids)):
        growing.find_earlier(token_ids[:end])
    assert growing.find_earlier(token_ids) == found


def test_no_more_is_proposed_than_asked_for_and_allowed(tiny: Path):
    bench = Bench(tiny, a_config())
    bench.add(a_request(prompt=[5, 6, 7, 8, 9, 10, 5]))
    (sequence,) = bench.scheduler._live.values()
    proposer = make_proposer(LOOKUP)
    assert proposer is not None
    assert proposer.propose(sequence, 9) == [6, 7, 8, 9]
    assert proposer.propose(sequence, 2) == [6, 7]
    assert make_proposer(None) is None
