"""POST /v1/embeddings: what is asked of the engine, what comes back, and what is refused."""

from __future__ import annotations

import base64
import struct
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from app.adapters import Adapter
from app.checkpoints.pooler import Pooler
from app.factory import create_app
from app.limits import Limits
from protocol.errors import UnavailableError
from protocol.lora import LoraId, LoraRequest
from protocol.pooling import Pooling, PoolingParams
from tests.helpers.app_under_test import AppUnderTest, Reply, make_app


async def embed(under_test: AppUnderTest, given: Any = "The sky is", **fields: Any) -> Reply:
    return await under_test.post("/v1/embeddings", input=given, **fields)


def refusal(reply: Reply) -> tuple[int, str | None, str]:
    error = reply.json["error"]
    return reply.status_code, error["param"], error["message"]


def with_pooler(pooler: Pooler) -> AppUnderTest:
    under_test = make_app()
    services = attrs.evolve(under_test.services, pooler=pooler)
    return AppUnderTest(create_app(services), under_test.engine, services)


async def test_a_text_becomes_a_vector_in_the_shape_of_openai():
    under_test = make_app()
    reply = await embed(under_test, "The sky is")
    ids = under_test.services.tokenizer.encode("The sky is")
    assert reply.status_code == 200
    answer = reply.json
    assert answer.pop("id").startswith("embd-")
    numbers = [float(number) for number in [len(ids), *ids, *[0] * 8][:8]]
    assert answer == {
        "object": "list",
        "created": 1_800_000_000,
        "model": "owner/dummy",
        "data": [{"object": "embedding", "index": 0, "embedding": numbers}],
        "usage": {"prompt_tokens": len(ids), "total_tokens": len(ids)},
    }
    (prompt,) = under_test.engine.prompts
    assert prompt.pooling == PoolingParams(Pooling.LAST, True, None)
    assert prompt.sampling_params.max_tokens == 0


async def test_base64_is_that_of_little_endian_float32():
    under_test = make_app()
    numbers = (await embed(under_test, [5, 6, 7])).json["data"][0]["embedding"]
    told = (await embed(under_test, [5, 6, 7], encoding_format="base64")).json["data"][0]["embedding"]
    assert list(struct.unpack("<8f", base64.b64decode(told))) == numbers == [3, 5, 6, 7, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("given", "lengths"), [(["a", "b", "a b c d"], None), ([[5], [6, 7], [8, 9, 10]], [1, 2, 3]), ([5, 6, 7], [3])]
)
@pytest.mark.parametrize("at_once", [1, 2, 256])
async def test_vectors_are_in_the_order_of_the_inputs(given: Any, lengths: list[int] | None, at_once: int):
    under_test = make_app(limits=Limits(max_embeddings_at_once=at_once))
    answer = (await embed(under_test, given)).json
    if lengths is None:
        lengths = [len(under_test.services.tokenizer.encode(text)) for text in given]
    assert [one["index"] for one in answer["data"]] == list(range(len(lengths)))
    assert [one["embedding"][0] for one in answer["data"]] == lengths
    assert answer["usage"]["total_tokens"] == sum(lengths)
    assert under_test.engine.num_left == -(-len(lengths) // at_once)
    assert under_test.services.metrics.requests.of(0).prompt_tokens == sum(lengths)
    assert under_test.services.metrics.requests.of(0).ended_by_reason["stop"] == len(lengths)


async def test_a_drain_waits_for_all_parts_of_a_request_that_has_begun(autojump_clock: Any):
    under_test = make_app(limits=Limits(max_embeddings_at_once=2))
    under_test.engine.hold()
    replies = []
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            replies.append(await embed(under_test, [[5] * length for length in range(1, 6)]))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        under_test.engine.refusal = UnavailableError("the server is shutting down")
        under_test.engine.let(3)
    assert [one["embedding"][0] for one in replies[0].json["data"]] == [1, 2, 3, 4, 5]
    assert (await embed(under_test)).status_code == 503


async def test_many_vectors_are_written_aside_and_are_the_same():
    under_test = make_app(hidden_size=2048)
    answer = (await embed(under_test, [[5] * length for length in range(1, 20)])).json
    assert [one["embedding"][0] for one in answer["data"]] == list(range(1, 20))


async def test_a_conversation_is_embedded_as_the_template_writes_it():
    under_test = make_app()
    messages = [{"role": "user", "content": "Hi"}]
    reply = await under_test.post("/v1/embeddings", messages=messages)
    assert reply.status_code == 200
    written = "<|im_start|>user\nHi<|im_end|>\n"
    expected = under_test.services.tokenizer.encode(written, add_special_tokens=False)
    assert under_test.engine.prompts[0].prompt_token_ids == expected


async def test_what_the_request_says_of_the_vector_reaches_the_engine():
    under_test = with_pooler(Pooler(Pooling.MEAN, normalize=False))
    reply = await embed(under_test, [5, 6], dimensions=3, normalize=True, priority=-3, cache_salt="s", model="alias")
    assert len(reply.json["data"][0]["embedding"]) == 3
    (prompt,) = under_test.engine.prompts
    assert (prompt.pooling, prompt.priority) == (PoolingParams(Pooling.MEAN, True, 3), -3)
    assert prompt.cache_salt
    assert reply.json["model"] == "alias"
    await embed(under_test, [5, 6])
    assert under_test.engine.prompts[1].pooling == PoolingParams(Pooling.MEAN, False, None)


async def test_an_input_may_fill_the_context_and_no_more():
    under_test = make_app(max_model_len=20)
    assert (await embed(under_test, [5] * 20)).status_code == 200
    for given in ([5] * 21, "a b c d e f g h i j k l m n o p q r s t u v w x y z", "x" * 10_000):
        status, param, message = refusal(reply := await embed(under_test, given))
        assert (status, reply.json["error"]["code"]) == (400, "context_length_exceeded"), (param, message)
        assert "20 tokens" in message


@pytest.mark.parametrize("asked", [-1, 4, 20])
@pytest.mark.parametrize("given", [list(range(5, 40)), "harbour boats mist " * 30, "fish " * 5_000])
async def test_an_input_is_cut_if_that_is_asked_for(given: Any, asked: int):
    under_test = make_app(max_model_len=20)
    kept = 20 if asked == -1 else asked
    whole = given if isinstance(given, list) else under_test.services.tokenizer.encode(given)
    for side, expected in ((None, whole[:kept]), ("right", whole[:kept]), ("left", whole[-kept:])):
        reply = await embed(under_test, given, truncate_prompt_tokens=asked, truncation_side=side)
        assert reply.status_code == 200, reply.text
        assert under_test.engine.prompts[-1].prompt_token_ids == expected
        assert reply.json["usage"]["prompt_tokens"] == kept


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "empty"),
        ({"input": ["a", ""]}, "input", "empty"),
        ({"input": [[5], []]}, "input", "empty"),
        ({"input": ["a", 5]}, "input", "input must be"),
        ({"input": None}, "input", "Exactly one of input and messages"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input", "Exactly one"),
        ({"messages": []}, "messages", "must not be empty"),
        ({"input": [512]}, "input", "token id 512 is outside the vocabulary (0 to 511)"),
        ({"input": [-1]}, "input", "token id -1 is outside"),
        ({"input": ["a"] * 2049}, "input", "2049 inputs; at most 2048"),
        ({"input": "a", "dimensions": 0}, "dimensions", "between 1 and 8, not 0"),
        ({"input": "a", "dimensions": 9}, "dimensions", "between 1 and 8, not 9"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "hex"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "between 1 and 256, not 0"),
        ({"input": "a", "truncate_prompt_tokens": 257}, "truncate_prompt_tokens", "not 257"),
        ({"input": "a", "timeout": 0}, "timeout", "not 0"),
        ({"input": "a", "priority": 2**31}, "priority", "priority must be between"),
        ({"input": "a", "cache_salt": ""}, "cache_salt", "cache_salt"),
        ({"input": {"text": "a"}}, "input", "input"),
        ({"input": "a", "chat_template": "{{ 1 }}", "messages": None}, None, ""),
    ],
)
async def test_what_is_wrong_is_refused_by_its_name(fields: dict[str, Any], param: str | None, told: str):
    under_test = make_app()
    reply = await under_test.post("/v1/embeddings", **fields)
    if param is None:
        assert reply.status_code == 200
        return
    status, named, message = refusal(reply)
    assert (status, named) == (400, param)
    assert told in message
    assert under_test.engine.prompts == []


async def test_all_inputs_together_are_bounded():
    under_test = make_app(limits=Limits(max_token_ids=10))
    assert (await embed(under_test, [[5] * 5] * 2)).status_code == 200
    assert refusal(await embed(under_test, [[5] * 4] * 3)) == (
        400,
        "input",
        "The inputs have 12 tokens together; at most 10 are taken in one request",
    )


async def test_the_numbers_of_the_answer_are_bounded_before_anything_runs():
    under_test = make_app(limits=Limits(max_embedding_numbers=24))
    assert (await embed(under_test, ["a"] * 3)).status_code == 200
    assert (await embed(under_test, [[5]] * 4, dimensions=6)).status_code == 200
    num_prompts = len(under_test.engine.prompts)
    for given, fields, told in (
        (["a"] * 4, {}, "4 inputs of 8 dimensions each are 32 numbers; at most 24"),
        ([[5]] * 5, {"dimensions": 5}, "5 inputs of 5 dimensions each are 25 numbers; at most 24"),
    ):
        status, param, message = refusal(await embed(under_test, given, **fields))
        assert (status, param) == (400, "input")
        assert told in message
    assert len(under_test.engine.prompts) == num_prompts
    assert Limits().max_embedding_numbers == 2_048 * 2_048


async def test_a_model_that_is_not_served_is_not_found():
    assert refusal(await embed(make_app(), model="other"))[:2] == (404, "model")


async def test_a_model_whose_vectors_take_more_than_is_computed_says_so():
    under_test = with_pooler(Pooler(refusal="modules.json has a module Dense"))
    status, _, message = refusal(await embed(under_test))
    assert status == 501
    assert "modules.json has a module Dense" in message


async def test_an_adapter_embeds_under_its_own_name():
    lora = LoraRequest("sql", LoraId(7), "/adapters/sql")
    under_test = make_app(adapters=[Adapter(lora, 1_750_000_000)])
    assert (await embed(under_test, [5], model="sql")).json["model"] == "sql"
    assert (await embed(under_test, [5])).json["model"] == "owner/dummy"
    assert [prompt.lora for prompt in under_test.engine.prompts] == [lora, None]


async def test_one_input_that_fails_fails_the_request():
    under_test = make_app(fails_after={1: 0})
    reply = await embed(under_test, ["a", "b", "c"])
    assert refusal(reply)[0] == 500
    assert under_test.engine.num_requests == 0
