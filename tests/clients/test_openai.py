"""OpenAI's own client, in each of the ways that its users call it, against a whole server."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from enum import StrEnum

import openai
import pydantic
import pytest
import trio

from tests.clients.client_code import SECONDS
from tests.helpers.server import Server, open_server

pytestmark = [pytest.mark.clients, pytest.mark.process]

MESSAGES = [{"role": "user", "content": "Tell me of boats."}]
CHAT = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
SHORT = CHAT | {"max_tokens": 40, "extra_body": {"structured_outputs": {"regex": "Boats( and boats){3}"}}}
"""An answer that comes to an end: the client's helpers raise for one that does not."""


class Boat(StrEnum):
    BARGE = "barge"
    FERRY = "ferry"


class Catch(pydantic.BaseModel):
    """What the client makes a strict JSON schema of; short, so that any model comes to an end."""

    boat: Boat
    herring: bool
    hours: list[Boat] = pydantic.Field(min_length=2, max_length=2)


class Ask(pydantic.BaseModel):
    """Where a boat lies."""

    boat: Boat


async def in_thread(server: Server, call: Callable[[openai.OpenAI], None]) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0, timeout=SECONDS) as client:
        await trio.to_thread.run_sync(call, client)


async def test_the_blocking_client(checkpoint):
    async with open_server(checkpoint, "--served-model-name", "tiny") as server:

        def use(client: openai.OpenAI) -> None:
            assert [model.id for model in client.models.list()] == ["tiny"]
            assert client.models.retrieve("tiny").owned_by
            plain = client.chat.completions.create(**SHORT)
            with client.chat.completions.stream(**SHORT, stream_options={"include_usage": True}) as stream:
                kinds = [event.type for event in stream]
                whole = stream.get_final_completion()
            assert whole.choices[0].message.content == plain.choices[0].message.content
            assert whole.usage.total_tokens == plain.usage.total_tokens
            assert {"chunk", "content.delta", "content.done"} <= set(kinds)
            raw = client.chat.completions.with_raw_response.create(**SHORT, extra_headers={"X-Request-Id": "mine"})
            assert raw.headers["x-request-id"] == "mine"
            assert raw.parse().choices[0].message.content == plain.choices[0].message.content
            with client.chat.completions.with_streaming_response.create(**SHORT) as response:
                assert json.loads(response.read())["usage"]["completion_tokens"] == plain.usage.completion_tokens
            told = client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=3, logprobs=2, echo=True)
            assert [choice.index for choice in told.choices] == [0, 1, 2, 3]
            pieces = client.completions.create(model="tiny", prompt="a", max_tokens=5, stream=True, temperature=0)
            assert "".join(piece.choices[0].text for piece in pieces)

        await in_thread(server, use)


async def test_the_parsing_helpers(checkpoint):
    async with open_server(checkpoint, "--served-model-name", "tiny") as server:

        def use(client: openai.OpenAI) -> None:
            fields = CHAT | {"max_tokens": 200, "seed": 3, "temperature": 1}
            parsed = client.chat.completions.parse(**fields, response_format=Catch)
            assert isinstance(parsed.choices[0].message.parsed, Catch)
            with client.chat.completions.stream(**fields, response_format=Catch) as stream:
                streamed = stream.until_done().get_final_completion()
            assert streamed.choices[0].message.parsed == parsed.choices[0].message.parsed

            tools = [openai.pydantic_function_tool(Ask)]
            called = client.chat.completions.parse(**fields, tools=tools, tool_choice="required")
            [call] = called.choices[0].message.tool_calls
            assert called.choices[0].finish_reason == "tool_calls"
            assert isinstance(call.function.parsed_arguments, Ask)
            named = {"type": "function", "function": {"name": "Ask"}}
            with client.chat.completions.stream(**fields, tools=tools, tool_choice=named) as stream:
                done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
            assert [type(event.parsed_arguments) for event in done] == [Ask]
            with pytest.raises(openai.LengthFinishReasonError):
                client.chat.completions.parse(**fields | {"max_tokens": 2}, response_format=Catch)

        await in_thread(server, use)


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # the client does not close its own
async def test_the_async_client_under_trio(checkpoint):
    async with open_server(checkpoint, "--served-model-name", "tiny") as server:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="k", max_retries=0, timeout=SECONDS
        ) as client:
            plain = await client.chat.completions.create(**SHORT)
            stream = await client.chat.completions.create(**SHORT, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == plain.choices[0].message.content
            async with client.chat.completions.stream(**SHORT) as events:
                whole = await events.get_final_completion()
            assert whole.choices[0].message.content == text
            abandoned = await client.completions.create(
                model="tiny", prompt="once", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
            )
            async for _ in abandoned:
                break
            await abandoned.close()
        with trio.fail_after(10):
            while await server.num_requests():
                await trio.sleep(0.02)


async def test_its_extras_reach_the_server(checkpoint):
    async with open_server(checkpoint, "--served-model-name", "tiny") as server:

        def use(client: openai.OpenAI) -> None:
            extra = {"truncate_prompt_tokens": 5, "return_prompt_text": True, "return_token_ids": True, "top_k": 1}
            told = client.chat.completions.create(
                **CHAT, logprobs=True, extra_body=extra | {"return_tokens_as_token_ids": True}
            )
            assert told.usage.prompt_tokens == 5 == len(told.prompt_token_ids)
            assert told.prompt_text.endswith("\n")
            names = [entry.token for entry in told.choices[0].logprobs.content]
            assert names == [f"token_id:{token_id}" for token_id in told.choices[0].token_ids]
            with pytest.raises(openai.APIStatusError) as caught:
                client.chat.completions.create(**CHAT, extra_body={"use_beam_search": True})
            assert (caught.value.status_code, caught.value.param) == (501, "use_beam_search")

        await in_thread(server, use)


def test_every_parameter_of_the_client_s_create_is_known_or_ignored() -> None:
    """Nothing that the client can send is refused for its name alone: msgspec skips what no field takes."""
    from app.schemas.chat import ChatRequest

    offered = set(inspect.signature(openai.OpenAI(api_key="k").chat.completions.create).parameters)
    needed = {"messages", "model", "temperature", "tools", "tool_choice", "response_format", "stream_options"}
    assert needed <= offered & set(ChatRequest.__struct_fields__)


async def test_responses(checkpoint):
    async with open_server(checkpoint, "--served-model-name", "tiny") as server:
        url = f"{server.url}/v1"
        strict = openai.OpenAI(base_url=url, api_key="k", timeout=SECONDS, _strict_response_validation=True)

        def use(client: openai.OpenAI) -> None:
            fields = {"model": "tiny", "input": "Tell me of boats.", "temperature": 0, "max_output_tokens": 40}
            fields["extra_body"] = SHORT["extra_body"]
            whole = strict.responses.create(**fields)
            assert (whole.status, whole.output_text) == ("completed", "Boats and boats and boats and boats")
            stream = strict.responses.create(**fields, stream=True)
            assert (
                "".join(event.delta for event in stream if event.type == "response.output_text.delta")
                == whole.output_text
            )
            with client.responses.stream(**fields) as events:
                kinds = [event.type for event in events]
                last = events.get_final_response()
            assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
            assert (last.output_text, last.usage.total_tokens) == (whole.output_text, whole.usage.total_tokens)

            fields = {"model": "tiny", "input": "Catch!", "max_output_tokens": 200, "extra_body": {"seed": 3}}
            parsed = client.responses.parse(**fields, text_format=Catch)
            assert isinstance(parsed.output_parsed, Catch)
            tools = [openai.pydantic_function_tool(Ask)["function"] | {"type": "function"}]
            [call] = strict.responses.create(**fields, tools=tools, tool_choice="required").output[:1]
            assert isinstance(Ask.model_validate_json(call.arguments), Ask)
            told = {"type": "function_call_output", "call_id": call.call_id, "output": "In the harbour."}
            turn = [{"role": "user", "content": "Where?"}, call.model_dump(exclude_none=True), told]
            assert strict.responses.create(**fields | {"input": turn, "max_output_tokens": 5}, tools=tools).output_text
            cut = strict.responses.create(**fields | {"max_output_tokens": 2, "extra_body": {"ignore_eos": True}})
            assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
            with pytest.raises(openai.NotFoundError):
                strict.responses.create(**fields, previous_response_id="resp_none")

        with strict:
            await in_thread(server, use)
