"""Whole answers of chat and completions: shapes, usage, echo, log-probabilities."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion

from app.factory import create_app
from protocol.errors import UnavailableError
from protocol.messages import FinishReason
from tests.helpers.app_under_test import MODEL, make_app


async def test_a_chat_answer_is_what_openais_client_reads() -> None:
    body = (await make_app().chat(max_tokens=4, logprobs=True, top_logprobs=2)).json
    parsed = ChatCompletion.model_validate(body, strict=False)
    assert parsed.model == MODEL
    assert parsed.id.startswith("chatcmpl-")
    assert parsed.choices[0].message.content == " Over the water"
    assert parsed.choices[0].finish_reason == "length"
    content = parsed.choices[0].logprobs.content
    assert len(content) == body["usage"]["completion_tokens"]
    assert b"".join(bytes(entry.bytes) for entry in content).decode() == " Over the water"
    assert [len(entry.top_logprobs) for entry in content] == [2] * 4


async def test_a_completion_is_what_openais_client_reads() -> None:
    body = (await make_app().complete(max_tokens=4, logprobs=2)).json
    parsed = Completion.model_validate(body)
    assert parsed.id.startswith("cmpl-")
    logprobs = parsed.choices[0].logprobs
    assert "".join(logprobs.tokens) == parsed.choices[0].text == " Over the water"
    assert logprobs.text_offset == [0, 5, 9, 13]
    assert all(token in top for token, top in zip(logprobs.tokens, logprobs.top_logprobs, strict=True))


async def test_a_model_is_what_openais_client_reads() -> None:
    under_test = make_app()
    assert Model.model_validate((await under_test.get(f"/v1/models/{MODEL}")).json).id == MODEL
    listed = (await under_test.get("/v1/models")).json
    assert [model["id"] for model in listed["data"]] == [MODEL, "alias"]
    assert (await under_test.get("/v1/models/nosuch")).status_code == 404


async def test_any_served_name_may_be_asked_and_the_name_asked_comes_back() -> None:
    under_test = make_app()
    for asked, told in ((MODEL, MODEL), ("alias", "alias"), (None, MODEL), ("", MODEL)):
        assert (await under_test.complete(model=asked, max_tokens=1)).json["model"] == told


async def test_a_batch_of_prompts_with_choices_is_in_order() -> None:
    under_test = make_app(reply=lambda prompt, index: f" {index}")
    body = (await under_test.complete(["a", "bb", "ccc"], n=2)).json
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert [choice["text"] for choice in body["choices"]] == [f" {index}" for index in range(6)]
    lengths = [len(under_test.engine.tokenizer.encode(text)) for text in ("a", "bb", "ccc")]
    assert body["usage"]["prompt_tokens"] == sum(lengths)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == sum(min(2, length - 1) for length in lengths)
    assert body["usage"]["total_tokens"] == sum(lengths) + body["usage"]["completion_tokens"]


async def test_token_ids_are_prompts() -> None:
    under_test = make_app()
    await under_test.complete([40, 41], max_tokens=1)
    await under_test.complete([[40, 41], [42]], max_tokens=1)
    assert [prompt.prompt_token_ids for prompt in under_test.engine.prompts] == [[40, 41], [40, 41], [42]]


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_the_prompt_before_the_text(stream: bool) -> None:
    under_test = make_app()
    for prompt, text in (("The sky is", "The sky is"), ([75, 76], under_test.engine.tokenizer.decode([75, 76]))):
        reply = await under_test.complete(prompt, echo=True, max_tokens=2, n=2, stream=stream)
        if not stream:
            assert [choice["text"] for choice in reply.json["choices"]] == [text + " Over the"] * 2
        else:
            assert reply.text.count(f'"text":"{text} Over"') == 2


async def test_echo_without_new_tokens_gives_the_prompts_logprobs() -> None:
    body = (await make_app().complete("The sky is", echo=True, max_tokens=0, logprobs=1)).json
    choice, logprobs = body["choices"][0], body["choices"][0]["logprobs"]
    assert choice["text"] == "The sky is"
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    assert "".join(logprobs["tokens"]) == "The sky is"
    assert len(logprobs["token_logprobs"]) == body["usage"]["prompt_tokens"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(isinstance(value, float) for value in logprobs["token_logprobs"][1:])


async def test_no_new_tokens_and_no_echo_is_an_empty_text() -> None:
    body = (await make_app().complete(max_tokens=0)).json
    assert body["choices"][0]["text"] == ""


async def test_echoed_and_new_logprobs_make_one_list_with_running_offsets() -> None:
    body = (await make_app().complete("naïve 😀", echo=True, max_tokens=3, logprobs=0)).json
    choice = body["choices"][0]
    logprobs = choice["logprobs"]
    assert len({len(logprobs[name]) for name in logprobs}) == 1
    assert len(logprobs["tokens"]) == body["usage"]["total_tokens"]
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        assert "�" in token or token.startswith("bytes:") or choice["text"].startswith(token, offset)


async def test_prompt_logprobs_have_vllms_shape() -> None:
    body = (await make_app().complete("The sky is", max_tokens=1, prompt_logprobs=1)).json
    found = body["choices"][0]["prompt_logprobs"]
    assert len(found) == body["usage"]["prompt_tokens"]
    assert found[0] is None
    assert all(set(entry) == {"logprob", "rank", "decoded_token"} for each in found[1:] for entry in each.values())
    chat = (await make_app().chat(max_tokens=1, prompt_logprobs=0)).json
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


async def test_token_ids_come_back_if_asked_for() -> None:
    under_test = make_app()
    choice = (await under_test.complete([40, 41], max_tokens=2, return_token_ids=True)).json["choices"][0]
    assert choice["prompt_token_ids"] == [40, 41]
    assert under_test.engine.tokenizer.decode(choice["token_ids"]) == choice["text"]


async def test_a_stop_string_is_told_as_the_stop_reason() -> None:
    choice = (await make_app().complete(stop=["mist", "water"], max_tokens=50)).json["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (" Over the ", "stop", "water")


@pytest.mark.parametrize("kind", ["chat", "complete"])
@pytest.mark.parametrize(
    ("engine", "status", "code"),
    [
        ({"refusal": UnavailableError("The queue is full")}, 503, None),
        ({"dies_after": 0}, 500, "engine_dead"),
        ({"dies_after": 2}, 500, "engine_dead"),
        ({"fails_after": {0: 1}}, 500, "request_failed"),
        ({"fails_after": {0: 1}, "failure": FinishReason.ABORT}, 503, "aborted"),
    ],
)
async def test_a_failure_is_an_openai_error(kind: str, engine: Any, status: int, code: str | None) -> None:
    under_test = make_app(**engine)
    reply = await (under_test.chat if kind == "chat" else under_test.complete)()
    assert reply.status_code == status
    assert reply.json["error"]["code"] == code
    assert under_test.engine.num_requests == 0


async def test_a_surprise_tells_nothing_and_is_logged_once_under_the_requests_label(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def surprise(prompt: Any, index: int) -> str:
        raise RuntimeError("secret path /etc/x")

    under_test = make_app(reply=surprise)
    reply = await under_test.send("POST", "/v1/completions", b'{"prompt": "a"}', x_request_id="label-1")
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert reply.headers["x-request-id"] == "label-1"
    records = [record for record in caplog.records if "secret" in (record.exc_text or "") + record.getMessage()]
    assert len(records) == 1
    assert "label-1" in records[0].getMessage()


@pytest.mark.parametrize("sent", ["x" * 129, "a b", "é", "a\x00b", ""])
async def test_an_odd_request_id_is_replaced(sent: str) -> None:
    reply = await make_app().send("GET", "/version", b"", x_request_id=sent)
    assert len(reply.headers["x-request-id"]) == 32


async def test_requests_with_one_label_do_not_meet() -> None:
    under_test = make_app()
    replies = [
        await under_test.send("POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 1}', x_request_id="same")
        for _ in range(2)
    ]
    assert len({reply.json["id"] for reply in replies}) == 2


async def test_before_the_engine_was_ever_ready_requests_get_503_with_the_reason() -> None:
    under_test = make_app()
    under_test.engine.facts = None
    reply = await under_test.complete()
    assert reply.status_code == 503
    assert reply.json["error"]["type"] == "service_unavailable_error"
    assert "Retry-After" in reply.headers
    assert (await under_test.get("/v1/models")).json["data"][0]["max_model_len"] is None


async def test_no_chat_template_is_told() -> None:
    reply = await make_app(template=None).chat()
    assert reply.status_code == 400
    assert reply.json["error"]["code"] == "no_chat_template"
    assert "chat template" in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "role"),
    [({}, "pirate"), ({"continue_final_message": True}, "assistant"), ({"add_generation_prompt": False}, "assistant")],
)
async def test_an_operator_may_say_whose_message_an_answer_is(fields: dict[str, Any], role: str) -> None:
    under_test = make_app()
    under_test.app = create_app(attrs.evolve(under_test.services, response_role="pirate"))
    plain = (await under_test.chat(max_tokens=3, **fields)).json
    assert plain["choices"][0]["message"]["role"] == role
    text = (await under_test.chat(max_tokens=3, stream=True, **fields)).text
    assert text.count('"role":') == 1
    assert f'"delta":{{"role":"{role}","content":""}}' in text
