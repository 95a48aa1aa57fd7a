"""The sampler's steps, each against a plain reference, and rows that do not touch each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu import truncation
from gpu.noise import gumbel_noise, noise_key
from gpu.sampler import NOT_FINITE, NOTHING_ALLOWED, Choice, Sampler, SamplingRow
from gpu.sequence_slot import SequenceSlot
from protocol.ids import RequestId, Slot
from protocol.sampling import SamplingParams
from protocol.step import NewSequence
from tests.helpers import reference_sampler
from tests.helpers.runner_conformance import only, params

CPU = torch.device("cpu")
VOCAB = 64


def row(
    wish: SamplingParams, prompt=(1, 2, 3), output=(), position=10, bitmask=None, vocab_size: int = VOCAB
) -> SamplingRow:
    new = NewSequence(Slot(0), RequestId("r"), list(prompt), list(output), wish)
    return SamplingRow(SequenceSlot(new, vocab_size, CPU), position, bitmask)


def random_logits(rows: int, seed: int = 0, vocab_size: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def choose(logits: torch.Tensor, rows: Sequence[SamplingRow], together: bool = False) -> list[Choice]:
    """Overwrites the logits."""
    return Sampler(CPU, together).choose(logits, rows).choices()


def tokens(logits: torch.Tensor, *rows: SamplingRow) -> list[int]:
    choices = choose(logits.clone(), rows)
    assert all(choice.error is None for choice in choices), choices
    return [choice.token_id for choice in choices]


def expected_draw(logits: torch.Tensor, kept: set[int], wish: SamplingParams, position: int) -> int:
    """Gumbel-max over the kept tokens, in float64."""
    noise = gumbel_noise(torch.tensor([noise_key(wish.seed, position)]), len(logits))[0].double()
    scores = logits.double() / wish.temperature + noise
    return max(kept, key=lambda token: scores[token].item())


def test_temperature_zero_takes_the_first_largest_logit():
    logits = random_logits(3)
    logits[1, [5, 9]] = 50.0
    best = logits.argmax(dim=1).tolist()
    assert tokens(logits, *[row(params())] * 3) == [best[0], 5, best[2]]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.3, 1.0, 2.0]),
            st.sampled_from([0, 1, 5, 63, 1000]),
            st.sampled_from([1.0, 0.9, 0.3, 1e-6]),
            st.sampled_from([0.0, 0.05, 1.0]),
            st.integers(-(2**63), 2**63 - 1),
            st.integers(1, 500),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 1000),
)
def test_a_row_draws_the_same_token_in_any_batch(wishes, seed):
    logits = random_logits(len(wishes), seed)
    rows = [row(params(temperature=t, top_k=k, top_p=p, min_p=m, seed=s), position=n) for t, k, p, m, s, n in wishes]
    alone = [tokens(logits[i : i + 1], one)[0] for i, one in enumerate(rows)]
    assert tokens(logits, *rows) == alone
    assert tokens(logits.flip(0), *rows[::-1]) == alone[::-1]


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0, 1, 3, 40]),
    st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.2, 1.0, 5.0]),
)
def test_truncation_keeps_what_the_definitions_say(seed, top_k, top_p, min_p, temperature):
    logits = random_logits(1, seed)[0]
    wish = params(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    order = sorted(range(VOCAB), key=lambda token: -logits[token].item())
    if top_k:
        order = order[:top_k]
    weights = [math.exp((logits[token] - logits[order[0]]).item() / temperature) for token in order]
    total, mass, kept = sum(weights), 0.0, set()
    for token, weight in zip(order, weights, strict=True):
        if mass < top_p and weight >= min_p:
            kept.add(token)
        mass += weight / total
    assert tokens(logits[None], row(wish, position=seed % 100)) == [expected_draw(logits, kept, wish, seed % 100)]


def test_top_p_over_a_flat_distribution_sorts_the_whole_vocabulary(monkeypatch):
    size = 4 * truncation.FIRST_CANDIDATES
    logits = torch.linspace(0.0, 0.1, size)[None]
    probabilities = logits[0].double().softmax(dim=0).flip(0)
    kept = int((probabilities.cumsum(dim=0) < 0.9).sum()) + 1
    drawn = [
        tokens(logits, row(params(temperature=1.0, top_p=0.9, seed=seed), vocab_size=size))[0] for seed in range(200)
    ]
    assert min(drawn) >= size - kept
    assert min(drawn) < size - truncation.FIRST_CANDIDATES  # so the first candidates were not all there is


def test_penalties_equal_a_plain_reference():
    prompt, output = [3, 3, 8, 11], [8, 8, 20, 21, 8]
    wish = params(presence_penalty=0.7, frequency_penalty=-0.4, repetition_penalty=1.3)
    for seed in range(20):
        logits = random_logits(1, seed)
        expected = logits[0].tolist()
        for token in {*prompt, *output}:
            expected[token] = expected[token] / 1.3 if expected[token] > 0 else expected[token] * 1.3
        for token in set(output):
            expected[token] -= -0.4 * output.count(token) + 0.7
        one = row(wish, prompt, output[:2])
        for token in output[2:]:
            one.slot.append(token)
        changed = logits.clone()
        choose(changed, [one])
        torch.testing.assert_close(changed[0], torch.tensor(expected))


def test_extreme_penalties_and_temperatures_leave_a_token():
    logits = random_logits(4)
    wishes = [
        params(repetition_penalty=1e30),
        params(repetition_penalty=1e-38, temperature=1.0),
        params(temperature=1e-30, top_p=0.5),
        params(temperature=1e30, top_p=0.5, min_p=0.1),
    ]
    found = tokens(logits, *[row(wish, prompt=range(40)) for wish in wishes])
    assert found[2] == logits[2].argmax()


def test_ending_tokens_wait_for_min_tokens():
    logits = random_logits(1)
    logits[0, 7], logits[0, 9], logits[0, 30] = 100.0, 99.0, 98.0
    wish = params(min_tokens=2, eos_token_ids=[7], stop_token_ids=[9])
    assert tokens(logits, row(wish)) == [30]
    assert tokens(logits, row(wish, output=[1])) == [30]
    assert tokens(logits, row(wish, output=[1, 2])) == [7]


def test_logit_bias_adds_and_allowed_tokens_exclude():
    logits = random_logits(1)
    logits[0, 7] = 20.0
    assert tokens(logits, row(params(logit_bias={7: -100.0, 63: 100.0}))) == [63]
    assert tokens(logits, row(params(allowed_token_ids=[4]))) == [4]
    assert tokens(logits, row(params(allowed_token_ids=[4, 5], logit_bias={5: 100.0, 6: 100.0}))) == [5]


def test_bad_words_are_forbidden_where_they_would_be_completed():
    logits = random_logits(1)
    logits[0, 7], logits[0, 9] = 100.0, 50.0
    assert tokens(logits, row(params(bad_words_token_ids=[[7]]))) == [9]
    wish = params(bad_words_token_ids=[[5, 6, 7]])
    assert tokens(logits, row(wish, output=[5, 6])) == [9]
    assert tokens(logits, row(wish, output=[6])) == [7]
    assert tokens(logits, row(wish, output=[5, 6, 1])) == [7]
    assert tokens(logits, row(wish, prompt=[5, 6])) == [7]


def test_token_ids_without_a_logit_need_no_mask():
    logits = random_logits(1)
    best = int(logits.argmax())
    beyond = [VOCAB, 10**9, -1]
    wish = params(min_tokens=5, eos_token_ids=beyond, stop_token_ids=beyond, bad_words_token_ids=[[i] for i in beyond])
    assert tokens(logits, row(wish)) == [best]
    assert choose(logits, [row(params(allowed_token_ids=beyond))])[0].error == NOTHING_ALLOWED


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_grammar_bitmask_binds_also_where_it_ends_before_the_vocabulary(temperature):
    wish = params(temperature=temperature)
    for allowed in (0, 31, 32, 63):
        assert tokens(random_logits(1), row(wish, bitmask=only([allowed], VOCAB))) == [allowed]
    logits = random_logits(1, vocab_size=70)
    logits[0, 69] = 1000.0
    assert tokens(logits, row(wish, bitmask=only([3], 64), vocab_size=70)) == [3]
    assert tokens(random_logits(1), row(wish, bitmask=only([3, 90], 96))) == [3]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_row_that_is_no_number_fails_alone(broken):
    logits = random_logits(5)
    best = logits.argmax(dim=1).tolist()
    logits[1, 17] = broken
    logits[2] = -math.inf
    rows = [
        row(params()),
        row(params(temperature=1.0, top_p=0.9)),
        row(params(temperature=1.0)),
        row(params(logit_bias={best[3]: -100.0}, min_tokens=2, eos_token_ids=[0])),
        row(params(allowed_token_ids=[5, 6], bad_words_token_ids=[[5], [6]])),
    ]
    choices = choose(logits, rows)
    assert [choice.error for choice in choices] == [None, NOT_FINITE, NOT_FINITE, None, NOTHING_ALLOWED]
    assert choices[0].token_id == best[0]
    assert choices[3].token_id not in (best[3], 0)


def test_greedy_rows_are_not_disturbed_by_drawn_ones_beside_them():
    logits = random_logits(2)
    logits[0, :32] = -math.inf
    expected = int(logits[0].argmax())
    rows = [row(params(logit_bias={40: -100.0})), row(params(temperature=1.0, top_p=0.9))]
    assert tokens(logits, *rows)[0] == (expected if expected != 40 else tokens(logits[:1], rows[0])[0])


SOMETIMES = st.sampled_from([0, 0, 1])


@st.composite
def wishes(draw):
    """Every feature in some rows, and none in others."""
    return params(
        temperature=draw(st.sampled_from([0.0, 0.7, 1.0])),
        top_k=draw(st.sampled_from([0, 0, 3, 50])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.4])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        frequency_penalty=draw(SOMETIMES) * 0.7,
        presence_penalty=draw(SOMETIMES) * -0.3,
        repetition_penalty=1.0 + draw(SOMETIMES) * 0.37,
        logit_bias={5: -3.0, 6: 7.5} if draw(SOMETIMES) else {},
        allowed_token_ids=list(range(40)) if draw(SOMETIMES) else None,
        bad_words_token_ids=[[7], [3, 8]] if draw(SOMETIMES) else [],
        min_tokens=draw(SOMETIMES) * 2,
        stop_token_ids=[2, 11],
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
    )


@settings(max_examples=40)
@given(st.lists(st.tuples(wishes(), SOMETIMES), min_size=1, max_size=6), st.integers(0, 1000), st.booleans(), st.data())
def test_tokens_are_those_of_the_reference_whatever_is_done_together(asked, seed, together, data):
    """Over steps in which members come and go, and what was chosen is remembered."""
    ours, theirs = ([row(wish).slot for wish, _ in asked] for _ in range(2))
    sampler = Sampler(CPU, together)
    for step in range(4):
        members = data.draw(st.lists(st.sampled_from(range(len(asked))), min_size=1, unique=True))
        logits = random_logits(len(members), seed + step)
        masks = [only(range(9, 60), VOCAB) if asked[i][1] else None for i in members]
        expected_logits, found_logits = logits.clone(), logits.clone()
        expected = reference_sampler.choose(
            expected_logits, [SamplingRow(theirs[i], step, mask) for i, mask in zip(members, masks, strict=True)]
        )
        chosen = sampler.choose(
            found_logits, [SamplingRow(ours[i], step, mask) for i, mask in zip(members, masks, strict=True)]
        )
        chosen.grow(None)
        assert chosen.choices() == expected
        assert torch.equal(found_logits, expected_logits)
        for i, choice in zip(members, expected, strict=True):
            if choice.error is None:
                theirs[i].append(choice.token_id)
                ours[i].output_token_ids.append(choice.token_id)


def test_a_row_that_failed_leaves_what_was_remembered():
    wish = params(frequency_penalty=1.0, repetition_penalty=1.5)
    good, bad = row(wish), row(wish)
    sampler = Sampler(CPU, together=True)
    logits = random_logits(2)
    logits[1] = math.nan
    sampler.choose(logits, [good, bad]).grow(None)
    assert good.slot.output_counts.sum() == 1
    assert bad.slot.output_counts.sum() == 0
    assert bad.slot.seen.sum() == 3  # the prompt


def test_nothing_is_decided_on_the_host_for_a_flat_distribution():
    size = 4 * truncation.FIRST_CANDIDATES
    logits = torch.linspace(0.0, 0.1, size)[None]
    rows = [row(params(temperature=1.0, top_p=0.9, seed=seed), vocab_size=size) for seed in range(40)]
    for one in rows:
        assert choose(logits.clone(), [one], together=True) == choose(logits.clone(), [one], together=False)


def test_equals_of_the_kth_token_stay_under_top_p_too():
    size = 3 * truncation.FIRST_CANDIDATES
    logits = torch.zeros(1, size)
    rows = [row(params(temperature=1.0, top_k=4, top_p=0.99, seed=seed), vocab_size=size) for seed in range(40)]
    for one in rows:
        expected = reference_sampler.choose(logits.clone(), [one])
        assert choose(logits.clone(), [one]) == choose(logits.clone(), [one], together=True) == expected
