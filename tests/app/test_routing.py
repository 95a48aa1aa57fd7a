"""Where requests go: to the engine with least to do, unless another one has their beginning and is hardly busier."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine import Prompt
from app.journal import MOST_AHEAD
from app.routing import MOST_CREDIT, Placement, Router, prefix_chain
from protocol.ids import EngineIndex
from protocol.lora import LoraRequest
from protocol.sampling import SamplingParams

ZERO, ONE, TWO = (EngineIndex(index) for index in range(3))
BLOCK = 16


def a_prompt(token_ids: list[int], **fields: object) -> Prompt:
    return Prompt(token_ids, SamplingParams(max_tokens=8, seed=1), **fields)


def a_router(num_engines: int = 2, num_blocks: int = 1000, **options: bool) -> Router:
    router = Router(**options)
    for index in range(num_engines):
        router.attach(EngineIndex(index), num_blocks, BLOCK)
    return router


def loads(*tokens: int) -> Counter[EngineIndex]:
    return Counter({EngineIndex(index): number for index, number in enumerate(tokens)})


LONG = a_prompt(list(range(100)))
AGAIN = a_prompt([*range(100), *range(500, 530)])


def test_of_idle_engines_each_has_its_turn():
    router = a_router(3)
    chosen = [router.choose(a_prompt([number] * 20), loads(), [ZERO, ONE, TWO])[0] for number in range(6)]
    assert chosen == [ZERO, ONE, TWO, ZERO, ONE, TWO]


def test_what_is_new_goes_to_the_engine_with_least_to_do():
    router = a_router(3)
    assert router.choose(LONG, loads(7, 3, 5), [ZERO, ONE, TWO]) == (ONE, 0)
    assert router.choose(a_prompt([5] * 99), loads(7, 3, 5), [ZERO, TWO]) == (TWO, 0)


def test_a_conversation_goes_on_where_its_blocks_are_unless_that_engine_is_busier_than_they_are_worth():
    router = a_router()
    assert router.choose(LONG, loads(), [ZERO, ONE]) == (ZERO, 0)

    assert router.choose(AGAIN, loads(95, 0), [ZERO, ONE]) == (ZERO, 96)  # of 100 tokens six blocks are whole
    assert router.choose(AGAIN, loads(300, 0), [ZERO, ONE]) == (ONE, 0)
    assert router.choose(AGAIN, loads(1, 0), [ZERO, ONE]) == (ONE, 128)
    assert router.predicted == {ZERO: 96, ONE: 128}


def test_what_a_beginning_is_worth_is_bounded():
    router = a_router()
    long = a_prompt(list(range(3 * MOST_CREDIT)))
    router.choose(long, loads(), [ZERO, ONE])
    assert router.choose(long, loads(MOST_CREDIT, 0), [ZERO, ONE])[0] == ONE
    assert router.choose(long, loads(MOST_CREDIT - 1, 0), [ONE, ZERO])[0] == ONE, "both have it now"


def test_the_last_token_is_never_cached():
    router = a_router()
    prompt = a_prompt(list(range(2 * BLOCK)))
    router.choose(prompt, loads(), [ZERO, ONE])
    assert router.choose(prompt, loads(), [ZERO, ONE]) == (ZERO, 2 * BLOCK - 1)


@pytest.mark.parametrize(
    "apart", [{"cache_salt": "mine"}, {"lora": LoraRequest("a", 5, "/a")}, {"lora": LoraRequest("b", 6, "/b")}]
)
def test_salts_and_adapters_have_chains_of_their_own(apart):
    assert not set(prefix_chain(LONG, BLOCK)) & set(prefix_chain(a_prompt(LONG.prompt_token_ids, **apart), BLOCK))


def test_equal_blocks_after_other_ones_are_other_blocks():
    one, other = prefix_chain(a_prompt([1] * 16 + [2] * 16), 16), prefix_chain(a_prompt([3] * 16 + [2] * 16), 16)
    assert one[1] != other[1]


def test_a_new_engine_has_nothing_and_so_has_one_whose_cache_was_emptied():
    router = a_router()
    router.choose(LONG, loads(), [ZERO, ONE])
    router.attach(ZERO, 1000, BLOCK)
    assert router.choose(AGAIN, loads(), [ZERO]) == (ZERO, 0)
    router.forget()
    assert router.choose(AGAIN, loads(), [ZERO]) == (ZERO, 0)


def test_what_an_engine_has_no_room_for_is_forgotten_the_oldest_first():
    router = a_router(num_blocks=10)
    prompts = [a_prompt([number] * 4 * BLOCK) for number in range(3)]  # of four blocks each
    for prompt in prompts:
        router.choose(prompt, loads(), [ZERO])
    cached = [router._sent[ZERO].count(prefix_chain(prompt, BLOCK)) for prompt in prompts]
    assert cached == [2, 4, 4]


def test_without_prefix_caching_only_loads_count():
    router = a_router(has_prefix_cache=False)
    assert [router.choose(LONG, loads(), [ZERO, ONE])[0] for _ in range(3)] == [ZERO, ONE, ZERO]


def test_the_choices_of_one_prompt_stay_together_and_prompts_are_spread():
    counted = loads(0, 0)
    placement = Placement(a_router(), counted, [ZERO, ONE])
    prompts = [a_prompt([number] * 40) for number in (1, 1, 1, 2, 2, 3)]
    chosen = []
    for prompt in prompts:
        index, _ = placement.place(prompt)
        placement.count(index, 100)
        chosen.append(index)
    assert chosen == [ZERO, ZERO, ZERO, ONE, ONE, ONE]
    assert counted == {ZERO: 300, ONE: 300}


def test_what_an_engine_that_has_gone_down_was_to_get_goes_to_another_one():
    placement = Placement(a_router(), loads(), [ZERO, ONE])
    assert placement.place(LONG) == (ZERO, 0)
    placement.drop(ZERO)
    assert placement.place(LONG) == (ONE, 0)
    placement.drop(ONE)
    assert placement.place(LONG) is None


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 3),  # which conversation
        st.integers(1, 300),  # how many tokens of it
        st.sets(st.integers(0, 2), min_size=1),  # which engines serve
        st.booleans(),  # whether it is over at once
    ),
    max_size=60,
)


@given(REQUESTS)
def test_no_engine_starves_none_is_chosen_that_does_not_serve_and_the_same_is_chosen_again(requests):
    def run() -> list[tuple[EngineIndex, int]]:
        router, counted, found = a_router(3, num_blocks=40), loads(0, 0, 0), []
        for conversation, length, serving, is_over in requests:
            prompt = a_prompt([conversation] * length)
            among = sorted(EngineIndex(index) for index in serving)
            chosen, cached = router.choose(prompt, counted, among)
            assert chosen in among
            assert 0 <= cached < length
            assert counted[chosen] <= min(counted[index] for index in among) + MOST_CREDIT
            if not is_over:
                counted[chosen] += length - cached + MOST_AHEAD
            found.append((chosen, cached))
        return found

    assert run() == run()


@settings(max_examples=20)
@given(st.lists(st.integers(0, 5), min_size=40, max_size=80), st.integers(2, 5))
def test_under_a_steady_load_every_engine_works(conversations, num_engines):
    """However alike the prompts are: nothing ends here."""
    router, counted = a_router(num_engines), Counter({EngineIndex(index): 0 for index in range(num_engines)})
    for conversation in conversations * 5:
        prompt = a_prompt([conversation] * 400)
        chosen, cached = router.choose(prompt, counted, list(counted))
        counted[chosen] += 400 - cached + MOST_AHEAD
    assert max(counted.values()) - min(counted.values()) <= MOST_CREDIT + 400 + MOST_AHEAD
