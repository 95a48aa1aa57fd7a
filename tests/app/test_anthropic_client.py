"""Anthropic's own client against the application on a real port: plain, streamed, with tools, and its error classes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
import trio

from app.dialects.dialect import Dialect
from protocol.errors import UnavailableError
from tests.helpers.app_under_test import MODEL, AppUnderTest, make_app
from tests.helpers.loopback import serve_on_loopback

pytestmark = pytest.mark.process

ASKED = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}]}
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '[{"name": "weather", "parameters": {"city": "Oslo"}}, {"name": "weather", "parameters": {"city": "Rome"}}]'


@asynccontextmanager
async def served(**engine: Any) -> AsyncIterator[tuple[AppUnderTest, str]]:
    under_test = make_app(api_keys=("k",), **engine)
    async with trio.open_nursery() as nursery:
        port = await serve_on_loopback(under_test.app, nursery)
        yield under_test, f"http://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


async def with_client(url: str, call: Callable[[anthropic.Anthropic], Any], **options: Any) -> Any:
    """Run a function of the blocking client."""

    def run() -> Any:
        with anthropic.Anthropic(
            **{"base_url": url, "api_key": "k", "max_retries": 0, "timeout": 20, **options}
        ) as client:
            return call(client)

    return await trio.to_thread.run_sync(run)


async def test_a_stream_gives_the_same_message_as_a_plain_answer() -> None:
    def both(client: anthropic.Anthropic) -> None:
        plain = client.messages.create(**ASKED, system="Be brief", stop_sequences=["mist"])
        with client.messages.stream(**ASKED, system="Be brief", stop_sequences=["mist"]) as stream:
            text = "".join(stream.text_stream)
            streamed = stream.get_final_message()
        assert plain.content[0].text == text == streamed.content[0].text == " Over the water hung a thin "
        assert (plain.stop_reason, plain.stop_sequence) == ("stop_sequence", "mist")
        assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", "mist")
        assert streamed.usage.output_tokens == plain.usage.output_tokens > 0
        assert streamed.usage.input_tokens == plain.usage.input_tokens > 0
        assert plain.usage.cache_read_input_tokens == 2
        counted = client.messages.count_tokens(model=MODEL, messages=ASKED["messages"], system="Be brief")
        assert counted.input_tokens == plain.usage.input_tokens + 2
        assert plain._request_id

    async with served() as (_, url):
        await with_client(url, both)


async def test_the_asynchronous_client_works_under_trio() -> None:
    async with (
        served() as (_, url),
        anthropic.AsyncAnthropic(base_url=url, auth_token="k", max_retries=0, timeout=20) as client,
    ):
        plain = await client.messages.create(**ASKED)
        async with client.messages.stream(**ASKED) as stream:
            kinds = [event.type async for event in stream if event.type != "text"]
            streamed = await stream.get_final_message()
        assert streamed.content[0].text == plain.content[0].text
        assert kinds[0] == "message_start"
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        beta = await client.beta.messages.create(**ASKED, betas=["interleaved-thinking-2025-05-14"])
        assert beta.content[0].text == plain.content[0].text


async def test_tools_go_round() -> None:
    """Two calls at once, their results, and the answer that follows."""

    def round_trip(client: anthropic.Anthropic) -> str:
        history: list[Any] = list(ASKED["messages"])
        with client.messages.stream(
            model=MODEL, max_tokens=200, messages=history, tools=[WEATHER], tool_choice={"type": "any"}
        ) as stream:
            inputs = [event.snapshot for event in stream if event.type == "input_json"]
            called = stream.get_final_message()
        assert called.stop_reason == "tool_use"
        assert [block.input for block in called.content] == [{"city": "Oslo"}, {"city": "Rome"}]
        assert inputs[-1] == {"city": "Rome"}
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"rain in {block.input['city']}"}
            for block in called.content
        ]
        history += [called.to_param(), {"role": "user", "content": [*results, {"type": "text", "text": "So?"}]}]
        answer = client.messages.create(model=MODEL, max_tokens=20, messages=history, tools=[WEATHER])
        assert answer.stop_reason == "end_turn"
        return answer.content[0].text

    replies = [CALL, "It rains."]
    async with served(reply=lambda prompt, index: replies.pop(0)) as (under_test, url):
        assert await with_client(url, round_trip) == "It rains."
        said = under_test.services.tokenizer.decode(under_test.engine.prompts[1].prompt_token_ids)
        assert said.index("rain in Oslo") < said.index("rain in Rome") < said.index("So?")


async def test_the_client_runs_tools_that_the_model_chose_after_some_thought() -> None:
    """Nothing forces the call here: it is read out of the model's own mark-up."""
    asked: list[str] = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Tells the weather of a city.

        Args:
            city: Its name.
        """
        asked.append(city)
        return f"rain in {city}"

    def run(client: anthropic.Anthropic) -> list[Any]:
        messages = [{"role": "user", "content": "Weather?"}]
        runner = client.beta.messages.tool_runner(
            model=MODEL, max_tokens=200, messages=messages, tools=[weather], stream=True
        )
        return [stream.get_final_message() for stream in runner]

    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Málaga"}}\n</tool_call>'
    replies = [f"<think>\nAsk.\n</think>\n\nLet me see. {call}", "It rains."]
    reading = {"dialect": Dialect("hermes", "qwen3"), "max_model_len": 1024}
    async with served(reply=lambda prompt, index: replies.pop(0), **reading) as (under_test, url):
        first, last = await with_client(url, run)
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
        assert (first.content[0].thinking.strip(), first.content[0].signature) == ("Ask.", "")
        assert first.stop_reason == "tool_use"
        assert first.usage.output_tokens_details.thinking_tokens > 0
        assert asked == ["Málaga"]
        assert last.content[0].text == "It rains."
        said = under_test.services.tokenizer.decode(under_test.engine.prompts[1].prompt_token_ids)
        assert "rain in Málaga" in said


async def test_the_client_sees_its_own_error_classes() -> None:
    def errors(client: anthropic.Anthropic) -> None:
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.messages.create(**ASKED, extra_body={"temperature": 9})
        assert caught.value.type == "invalid_request_error"
        assert "temperature" in caught.value.api_message
        assert caught.value.request_id == caught.value.body["request_id"]
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**ASKED | {"model": "claude-opus-4"})
        with pytest.raises(anthropic.AuthenticationError) as denied:
            client.with_options(api_key="wrong").messages.create(**ASKED)
        assert denied.value.type == "authentication_error"

    async with served() as (_, url):
        await with_client(url, errors)
        await with_client(url, lambda client: client.messages.create(**ASKED))


async def test_a_key_in_the_older_header_is_taken() -> None:
    async with served() as (_, url):
        headers = {"X-Api-Key": "k", "Authorization": anthropic.Omit()}
        answer = await with_client(url, lambda client: client.messages.create(**ASKED, extra_headers=headers))
        assert answer.stop_reason == "end_turn"


async def test_overload_is_tried_again_and_a_failing_stream_raises() -> None:
    async with served(refusal=UnavailableError("Too many requests")) as (under_test, url):

        def calm_down(client: anthropic.Anthropic) -> Any:
            with pytest.raises(anthropic.InternalServerError) as caught:
                client.messages.create(**ASKED)
            assert caught.value.type == "overloaded_error"
            under_test.engine.refusal = None
            return client.messages.create(**ASKED)

        assert (await with_client(url, calm_down)).content
    async with served(fails_after={0: 3}) as (_, url):

        def fail(client: anthropic.Anthropic) -> None:
            with pytest.raises(anthropic.APIStatusError) as caught, client.messages.stream(**ASKED) as stream:
                stream.until_done()
            assert caught.value.type == "api_error"
            assert json.dumps(caught.value.body)

        await with_client(url, fail)
