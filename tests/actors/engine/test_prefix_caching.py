"""Sequences that begin alike share what has been computed, and nobody can tell from their tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.engine.block_hashes import BlockHashes
from tests.actors.engine.test_scheduler import shares
from tests.helpers.scheduling import EOS, Bench, a_config, a_request, alone

PROMPT = list(range(3, 14))
"""Two full blocks of 4 tokens, and 3 tokens."""


def starts(bench: Bench, request_id: str) -> list[int]:
    """Where each incarnation of the request began to compute."""
    new = [(new, plan) for plan in bench.plans for new in plan.new_sequences if new.request_id == request_id]
    return [next(row.start for row in plan.rows if row.slot == one.slot) for one, plan in new]


def run_after(bench: Bench, *requests: object) -> None:
    """One after the other."""
    for request in requests:
        bench.add(request)
        bench.run()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_full_blocks_of_a_prompt_are_not_computed_again(tiny: Path, temperature: float):
    bench = Bench(tiny, a_config())
    second = a_request("b", PROMPT, temperature=temperature, seed=5, logprobs=2)
    run_after(bench, a_request("a", PROMPT), second)
    assert starts(bench, "b") == [8]
    assert bench.tokens("b") == alone(tiny, second).tokens("b")
    assert bench.outputs["b"][0].num_cached_tokens == 8
    assert all(output.num_cached_tokens == 0 for output in (*bench.outputs["a"], *bench.outputs["b"][1:]))


def test_blocks_of_a_running_sequence_are_shared_too(tiny: Path):
    bench = Bench(tiny, a_config(num_blocks=8, max_num_seqs=2))
    bench.add(a_request("a", PROMPT, max_tokens=9))
    bench.step()
    bench.add(a_request("b", PROMPT, max_tokens=9))
    bench.step()
    assert bench.plans[-1].new_sequences[0].num_computed_tokens == 8
    assert bench.scheduler.stats().kv_blocks_used == 4
    bench.run()
    assert bench.tokens("a") == bench.tokens("b")


def test_what_was_generated_is_found_by_the_next_turn(tiny: Path):
    bench = Bench(tiny, a_config())
    run_after(bench, a_request("a", PROMPT, max_tokens=6))
    run_after(bench, a_request("b", [*PROMPT, *bench.tokens("a"), 5, 6]))
    assert starts(bench, "b") == [16]  # the last token of an answer was sampled and never computed


@pytest.mark.parametrize(("length", "start"), [(4, 0), (5, 4), (8, 4), (9, 8)])
def test_the_last_token_of_a_prompt_is_always_computed(tiny: Path, length: int, start: int):
    bench = Bench(tiny, a_config())
    run_after(bench, a_request("a", PROMPT), a_request("b", PROMPT[:length]))
    assert starts(bench, "b") == [start]


def test_only_blocks_that_have_been_computed_are_found(tiny: Path):
    """And not those that the step in flight is computing."""
    bench = Bench(tiny, a_config(max_num_batched_tokens=4))
    bench.add(a_request("a", PROMPT))
    plan = bench.schedule()
    bench.scheduler.abort(bench.requests["a"].client_index, ["a"])
    bench.commit(plan, bench.compute(plan))
    run_after(bench, a_request("b", PROMPT))
    assert starts(bench, "b") == [0]


def test_an_aborted_prompt_leaves_its_chunks(tiny: Path):
    bench = Bench(tiny, a_config(max_num_batched_tokens=4))
    bench.add(a_request("a", PROMPT))
    bench.step()
    bench.scheduler.abort(bench.requests["a"].client_index, ["a"])
    run_after(bench, a_request("b", PROMPT))
    assert starts(bench, "b") == [4]


@pytest.mark.parametrize(("first", "second", "start"), [("", "", 8), ("x", "x", 8), ("", "x", 0), ("x", "y", 0)])
def test_only_requests_with_the_same_salt_share(tiny: Path, first: str, second: str, start: int):
    bench = Bench(tiny, a_config())
    run_after(bench, a_request("a", PROMPT, salt=first), a_request("b", PROMPT, salt=second))
    assert starts(bench, "b") == [start]


def test_prompt_logprobs_need_every_position_and_leave_their_blocks(tiny: Path):
    bench = Bench(tiny, a_config())
    asking = a_request("b", PROMPT, prompt_logprobs=1)
    run_after(bench, a_request("a", PROMPT), asking, a_request("c", PROMPT))
    assert bench.outputs["b"] == alone(tiny, asking).outputs["b"]
    assert (starts(bench, "b"), starts(bench, "c")) == ([0], [8])


def test_without_prefix_caching_everything_is_computed(tiny: Path):
    bench = Bench(tiny, a_config(enable_prefix_caching=False))
    run_after(bench, a_request("a", PROMPT), a_request("b", PROMPT))
    assert starts(bench, "b") == [0]
    assert bench.scheduler.stats().prefix_cache_queries == 0


def test_a_preempted_sequence_finds_what_nobody_has_taken(tiny: Path):
    bench = Bench(tiny, a_config(num_blocks=8, max_num_seqs=2))
    requests = [a_request(name, range(base, base + 10), max_tokens=16) for name, base in (("a", 3), ("b", 30))]
    for request in requests:
        bench.add(request)
    bench.run()
    assert bench.scheduler.stats().num_preemptions > 0
    assert starts(bench, "b")[-1] > 0
    assert bench.outputs["b"][0].num_cached_tokens == 0
    for request in requests:
        assert bench.tokens(request.request_id) == alone(tiny, request).tokens(request.request_id)


def test_found_blocks_that_are_free_count_as_used_once_they_are_shared(tiny: Path):
    """Else a sequence would be admitted that has no room."""
    bench = Bench(tiny, a_config(num_blocks=4, max_num_seqs=2))
    run_after(bench, a_request("a", PROMPT, max_tokens=1))
    bench.add(a_request("b", [50] * 6, max_tokens=2))
    bench.step()
    bench.add(a_request("c", PROMPT, max_tokens=1))
    assert [row.slot for row in bench.step().rows] == [0]
    bench.run()
    assert len(bench.tokens("c")) == 1


def test_an_error_of_a_row_retracts_its_blocks(tiny: Path):
    """What made its logits NaN may lie in them."""
    bench = Bench(tiny, a_config(max_num_batched_tokens=8))
    broken = a_request("a", PROMPT, allowed_token_ids=[EOS], stop_token_ids=[EOS], min_tokens=2)
    run_after(bench, broken, a_request("b", PROMPT))
    assert bench.finish("a").error is not None
    assert starts(bench, "b") == [0]


def test_the_cache_counts_tokens_once_per_request(tiny: Path):
    bench = Bench(tiny, a_config())
    run_after(bench, a_request("a", PROMPT), a_request("b", PROMPT), a_request("c", PROMPT[:4]))
    stats = bench.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (26, 8)
    assert stats.prompt_tokens == 26


def test_shares_leave_room_in_the_step_for_others(tiny: Path):
    bench = Bench(tiny, a_config(max_num_batched_tokens=8))
    run_after(bench, a_request("a", PROMPT))
    bench.add(a_request("b", PROMPT))
    bench.add(a_request("c", [50] * 5))
    assert shares(bench.step()) == [(0, 8, 3, True), (1, 0, 5, True)]


def test_hashes_name_a_block_together_with_all_before_it():
    def hashes(token_ids: list[int], salt: str = "") -> list[bytes]:
        return BlockHashes(2, salt).up_to(token_ids, len(token_ids))

    chain = hashes([1, 2, 3, 4, 5])
    assert len(chain) == 2
    assert hashes([1, 2, 9, 9])[0] == chain[0]
    assert len({*chain, *hashes([3, 4, 3, 4]), *hashes([1, 2, 3, 4], "x")}) == 6


def test_hashes_are_made_once_and_grow():
    hashes = BlockHashes(2, "")
    whole = [7, 8, 9, 10, 11, 12]
    assert hashes.up_to(whole, 3) == BlockHashes(2, "").up_to(whole, 2)
    assert hashes.up_to(whole, 6) == BlockHashes(2, "").up_to(whole, 6)
    assert hashes.up_to(whole, 4) == BlockHashes(2, "").up_to(whole, 5)
