"""Parameters beyond OpenAI's own that clients of vLLM send: each does what it says, or is refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.limits import Limits
from app.model_card import GenerationConfig
from app.sampling import Wanted
from app.schemas.completions import CompletionRequest as Request
from app.truncation import bounded_text, num_kept, truncated
from protocol.errors import BadRequestError
from protocol.sampling import RepetitionDetection
from tests.helpers.app_under_test import AppUnderTest, Reply, make_app

KINDS = ["chat", "completions"]
WORDS = "one two three four five six seven eight nine ten"


def wanted(max_tokens: int | None, default: int | None) -> Wanted:
    return Wanted(max_tokens, "max_tokens", default, 0, None, None)


def ask(under_test: AppUnderTest, kind: str, **fields: Any) -> Any:
    return (under_test.chat if kind == "chat" else under_test.complete)(**{"max_tokens": 2, **fields})


# ---------------------------------------------------------------------- truncation


@pytest.mark.parametrize(
    ("asked", "max_tokens", "kept"), [(7, 5, 7), (-1, 5, 95), (-1, None, 84), (-1, 0, 99), (-1, 500, 1), (100, 1, 100)]
)
def test_what_a_prompt_may_keep_leaves_room_for_the_answer(asked: int, max_tokens: int | None, kept: int) -> None:
    fields = Request(truncate_prompt_tokens=asked)
    assert num_kept(fields, wanted(max_tokens, default=16), 100) == kept


def test_a_chat_whose_answer_has_no_limit_keeps_all_but_one_token_of_the_context() -> None:
    assert num_kept(Request(truncate_prompt_tokens=-1), wanted(None, default=None), 100) == 99


@pytest.mark.parametrize("asked", [0, -2, 101, 2**70])
def test_a_truncation_to_nothing_or_beyond_the_context_is_refused(asked: int) -> None:
    with pytest.raises(BadRequestError) as caught:
        num_kept(Request(truncate_prompt_tokens=asked), wanted(1, default=16), 100)
    assert caught.value.param == "truncate_prompt_tokens"


@pytest.mark.parametrize(("side", "left"), [(None, [4, 5]), ("left", [4, 5]), ("right", [1, 2])])
def test_the_end_of_a_prompt_is_kept_unless_its_beginning_is_wanted(side: Any, left: list[int]) -> None:
    fields = Request(truncate_prompt_tokens=2, truncation_side=side)
    assert truncated([1, 2, 3, 4, 5], fields, wanted(1, default=16), 100) == left
    assert truncated([1, 2], fields, wanted(1, default=16), 100) == [1, 2]


def test_of_a_text_that_is_cut_no_more_is_tokenised_than_could_be_kept() -> None:
    assert bounded_text("abcdef", Request(), 4) == "abcdef"
    assert bounded_text("abcdef", Request(truncate_prompt_tokens=2), 4) == "cdef"
    assert bounded_text("abcdef", Request(truncate_prompt_tokens=2, truncation_side="right"), 4) == "abcd"


@pytest.mark.parametrize("side", ["left", "right"])
async def test_a_prompt_over_the_context_is_served_when_it_may_be_cut(side: str) -> None:
    under_test = make_app(max_model_len=64)
    whole = under_test.services.tokenizer.encode(WORDS * 40)
    fields = {"truncate_prompt_tokens": -1, "truncation_side": side, "max_tokens": 4, "return_token_ids": True}
    for prompt in (WORDS * 40, whole):
        reply = await under_test.complete(prompt, **fields)
        assert reply.status_code == 200, reply.text
        assert reply.json["choices"][0]["prompt_token_ids"] == (whole[:60] if side == "right" else whole[-60:])
        assert reply.json["usage"]["prompt_tokens"] == 60
    assert (await under_test.complete(WORDS * 40, max_tokens=4)).status_code == 400


async def test_a_chat_is_cut_after_it_is_rendered() -> None:
    under_test = make_app()
    whole = (await under_test.chat(WORDS, max_tokens=1, return_token_ids=True)).json["prompt_token_ids"]
    reply = await under_test.chat(WORDS, truncate_prompt_tokens=9, max_tokens=1, return_token_ids=True)
    assert reply.json["prompt_token_ids"] == whole[-9:]
    assert reply.json["usage"]["prompt_tokens"] == 9


async def test_the_echo_of_a_text_that_was_cut_is_what_is_left_of_it() -> None:
    under_test = make_app()
    reply = await under_test.complete("The sky is blue", truncate_prompt_tokens=2, max_tokens=1, echo=True, logprobs=0)
    choice = reply.json["choices"][0]
    left = under_test.engine.prompts[0].prompt_token_ids
    assert choice["text"] == under_test.services.tokenizer.decode(left) + " Over"
    assert len(choice["logprobs"]["tokens"]) == 3


# ---------------------------------------------------------------------- what answers tell


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_name_tokens_by_their_ids_if_asked(stream: bool) -> None:
    under_test = make_app()
    fields = {"return_tokens_as_token_ids": True, "return_token_ids": True, "stream": stream, "max_tokens": 3}
    completion = whole(await under_test.complete(logprobs=1, **fields))
    chat = whole(await under_test.chat(logprobs=True, top_logprobs=1, **fields))
    names = [f"token_id:{token_id}" for part in completion for token_id in part["token_ids"]]
    assert [name for part in completion for name in part["logprobs"]["tokens"]] == names
    assert all(set(top) >= {name} for part in completion for name, top in zipped(part["logprobs"]))
    entries = [entry for part in chat if part["logprobs"] for entry in part["logprobs"]["content"]]
    assert [entry["token"] for entry in entries] == names
    assert all(entry["top_logprobs"][0]["token"].startswith("token_id:") for entry in entries)
    assert bytes(entries[0]["bytes"]) == b" Over", "the bytes stay the token's own"


def zipped(logprobs: dict[str, Any]) -> Any:
    return zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True)


def whole(reply: Reply) -> list[dict[str, Any]]:
    """The choice of a plain answer, or each chunk's."""
    assert reply.status_code == 200, reply.text
    if reply.data.startswith(b"{"):
        return [reply.json["choices"][0]]
    events = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line.startswith("data: {")]
    return [choice for choice in (json.loads(event)["choices"][0] for event in events) if choice.get("token_ids")]


async def test_an_echoed_first_token_is_named_by_its_id_too() -> None:
    under_test = make_app()
    reply = await under_test.complete(echo=True, logprobs=0, max_tokens=0, return_tokens_as_token_ids=True)
    ids = under_test.engine.prompts[0].prompt_token_ids
    assert reply.json["choices"][0]["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in ids]


async def test_the_prompt_is_told_as_the_model_saw_it() -> None:
    under_test = make_app()
    chat = await under_test.chat("Hi", return_prompt_text=True, max_tokens=1)
    assert chat.json["prompt_text"] == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    texts = await under_test.complete(["a b", "c d"], n=2, return_prompt_text=True, max_tokens=1)
    assert [choice["prompt_text"] for choice in texts.json["choices"]] == ["a b", "a b", "c d", "c d"]
    assert "prompt_text" not in (await under_test.chat("Hi", max_tokens=1)).json


# ---------------------------------------------------------------------- headers


@pytest.mark.parametrize(
    ("path", "start"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
        ("/v1/embeddings", {"input": "Hi"}),
    ],
)
async def test_the_priority_header_goes_before_the_body_s(path: str, start: dict[str, Any]) -> None:
    under_test = make_app()
    body = json.dumps(start | {"priority": 4}).encode()
    for header, priority in ((None, 4), ("-7", -7), ("0", 0)):
        await under_test.send("POST", path, body, x_vllm_priority=header)
        assert under_test.engine.prompts[-1].priority == priority
    for wrong in ("high", "1.5", "9" * 11, "2147483648", "٣", ""):
        reply = await under_test.send("POST", path, body, x_vllm_priority=wrong.encode().decode("latin-1"))
        assert (reply.status_code, reply.json["error"]["param"]) == (400, "priority")


async def test_a_request_id_in_the_body_is_a_label_that_the_header_goes_before() -> None:
    under_test = make_app()
    body = b'{"prompt": "a", "max_tokens": 1, "request_id": "mine"}'
    reply = await under_test.send("POST", "/v1/completions", body)
    assert reply.headers["x-request-id"] == "mine"
    assert "mine" not in reply.json["id"]
    reply = await under_test.send("POST", "/v1/completions", body, x_request_id="header")
    assert reply.headers["x-request-id"] == "header"
    odd = await under_test.complete(request_id="a\nb", max_tokens=1)
    assert len(odd.headers["x-request-id"]) == 32


# ---------------------------------------------------------------------- what is not done here


REFUSED = [
    {"use_beam_search": True},
    {"length_penalty": 0.8},
    {"logprob_token_ids": [1]},
    {"kv_transfer_params": {"do_remote_decode": True}},
    {"ec_transfer_params": {"a": 1}},
    {"vllm_xargs": {"a": 1}},
    {"response_format": {"type": "structural_tag", "format": {}}},
    {"structured_outputs": {"structural_tag": "{}"}},
]
NOTHING = [
    {"use_beam_search": False, "length_penalty": 1.0},
    {"length_penalty": 1},
    {"logprob_token_ids": []},
    {"repetition_detection": {"max_pattern_size": 0}},
    {"repetition_detection": {}},
    {"kv_transfer_params": {}, "ec_transfer_params": None, "vllm_xargs": {}},
    {"mm_processor_kwargs": {"fps": 2}, "session_id": "s", "store": True, "metadata": {"a": "b"}},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fields", REFUSED, ids=lambda fields: next(iter(fields)))
async def test_what_is_not_done_here_is_refused_by_its_name(kind: str, fields: dict[str, Any]) -> None:
    under_test = make_app()
    reply = await ask(under_test, kind, **fields)
    assert reply.status_code == 501
    assert reply.json["error"]["param"] == next(iter(fields))
    assert under_test.engine.prompts == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fields", NOTHING, ids=str)
async def test_what_asks_for_nothing_is_taken(kind: str, fields: dict[str, Any]) -> None:
    reply = await ask(make_app(), kind, **fields)
    assert reply.status_code == 200, reply.text


# ---------------------------------------------------------------------- an answer that repeats itself


@pytest.mark.parametrize("kind", KINDS)
async def test_what_counts_as_repetition_is_handed_to_the_engine(kind: str) -> None:
    under_test = make_app()
    for asked, wanted in (
        ({"max_pattern_size": 3, "min_count": 2}, RepetitionDetection(3, 1, 2)),
        ({"max_pattern_size": 256, "min_pattern_size": 5, "min_count": 256}, RepetitionDetection(256, 5, 256)),
        ({"max_pattern_size": 0}, None),
    ):
        assert (await ask(under_test, kind, repetition_detection=asked)).status_code == 200
        assert under_test.engine.prompts[-1].sampling_params.repetition == wanted
    for asked, param in (
        ({"max_pattern_size": 257, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 3, "min_pattern_size": 4, "min_count": 2}, "min_pattern_size"),
        ({"max_pattern_size": 3}, "min_count"),
        ({"max_pattern_size": 3, "min_count": 257}, "min_count"),
    ):
        reply = await ask(under_test, kind, repetition_detection=asked)
        assert (reply.status_code, reply.json["error"]["param"]) == (400, f"repetition_detection.{param}")


# ---------------------------------------------------------------------- the server's own defaults


async def test_a_limit_of_the_generation_config_bounds_every_answer() -> None:
    under_test = make_app(generation_config=GenerationConfig(max_new_tokens=3))
    for kind in KINDS:
        for max_tokens, given in ((None, 3), (2, 2), (50, 3)):
            await ask(under_test, kind, max_tokens=max_tokens)
            assert under_test.engine.prompts[-1].sampling_params.max_tokens == given
    reply = await under_test.complete(min_tokens=4)
    assert reply.json["error"]["param"] == "min_tokens"


async def test_a_request_s_own_template_is_rendered_only_where_that_is_trusted() -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    refused = await make_app().chat(chat_template=template)
    assert (refused.status_code, refused.json["error"]["param"]) == (400, "chat_template")
    assert "--trust-request-chat-template" in refused.json["error"]["message"]
    under_test = make_app(limits=Limits(trusts_chat_templates=True), template=None)
    reply = await under_test.chat("Hi", chat_template=template, return_prompt_text=True, max_tokens=1)
    assert reply.json["prompt_text"] == "[Hi]"
    tokens = await under_test.post(
        "/tokenize", messages=[{"role": "user", "content": "Hi"}], chat_template="{{ messages[0].content }}"
    )
    assert tokens.json["tokens"] == under_test.services.tokenizer.encode("Hi")
    for wrong in ("{% for %}", "", "x" * 65_537, "{{ ''.__class__ }}"):
        assert (await under_test.chat("Hi", chat_template=wrong)).status_code == 400
