"""What every EngineClient must do: `check_engine_client` is called with the real one, over the actors' own mains, and
with the fake that the routes are tested with."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from app.engine import EngineClient, Prompt
from protocol.errors import GrammarError, UnavailableError
from protocol.messages import FinishReason
from protocol.sampling import GrammarKind, GrammarSource, SamplingParams


def a_prompt(*ids: int, max_tokens: int = 8, **fields: object) -> Prompt:
    return Prompt(list(ids) or [5, 6, 7], SamplingParams(max_tokens=max_tokens, seed=1, **fields))


async def check_engine_client(client: EngineClient) -> None:
    """For one that is ready and has nothing to do. Prompts of token ids below 30 end by their length."""
    assert client.alive
    assert client.readiness.ready
    assert client.facts is not None
    await check_deltas_are_contiguous_and_end_once(client)
    await check_entering_and_leaving_are_no_checkpoints(client)
    await check_leaving_early_forgets_what_is_unfinished(client)
    await check_grammars_are_judged(client)
    assert client.num_requests == 0


async def check_deltas_are_contiguous_and_end_once(client: EngineClient) -> None:
    prompts = [a_prompt(max_tokens=3), a_prompt(9, 8, max_tokens=6, logprobs=2), a_prompt(4, max_tokens=1)]
    ids: list[list[int]] = [[] for _ in prompts]
    ends: list[FinishReason | None] = [None for _ in prompts]
    async with client.generate(prompts) as generation:
        assert client.num_requests == 3
        while not generation.finished:
            outputs = await generation.receive()
            indices = [index for index, _ in outputs]
            assert indices == sorted(set(indices)), "at most one delta per prompt, in order"
            assert indices, "it waits until there is something"
            for index, output in outputs:
                assert ends[index] is None, "nothing comes after the end"
                assert output.offset == len(ids[index])
                assert (output.logprobs is not None) == (prompts[index].sampling_params.logprobs is not None)
                assert output.logprobs is None or len(output.logprobs) == len(output.token_ids)
                ids[index] += output.token_ids
                ends[index] = output.finish_reason
            assert client.num_requests <= ends.count(None), "who has been told its end is not live"
    assert [len(tokens) for tokens in ids] == [3, 6, 1]
    assert ends == [FinishReason.LENGTH] * 3


async def check_entering_and_leaving_are_no_checkpoints(client: EngineClient) -> None:
    """So that no cancellation comes between registering a request and owning it."""
    opened = client.generate([a_prompt(), a_prompt(8)])
    with trio.testing.assert_no_checkpoints():
        await opened.__aenter__()
    assert client.num_requests == 2
    with trio.testing.assert_no_checkpoints():
        await opened.__aexit__(None, None, None)
    assert client.num_requests == 0


async def check_leaving_early_forgets_what_is_unfinished(client: EngineClient) -> None:
    with trio.CancelScope() as scope:
        async with client.generate([a_prompt(max_tokens=100), a_prompt(8, max_tokens=100)]) as generation:
            await generation.receive()
            assert not generation.finished
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert client.num_requests == 0


async def check_grammars_are_judged(client: EngineClient) -> None:
    grammar = await client.check_grammar(GrammarSource(GrammarKind.REGEX, "[ab]+"))
    assert grammar.text
    with pytest.raises(GrammarError):
        await client.check_grammar(GrammarSource(GrammarKind.REGEX, "[ab"))


async def check_refusal(client: EngineClient) -> None:
    """For one that refuses two more prompts."""
    before = client.num_requests
    with pytest.raises(UnavailableError) as caught:
        async with client.generate([a_prompt(), a_prompt(8)]):
            raise AssertionError("it was entered")
    assert caught.value.retry_after is not None
    assert client.num_requests == before
