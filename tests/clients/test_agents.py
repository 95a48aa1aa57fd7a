"""openai-agents with its models for chats and for responses: a tool is called, and the conversation goes on with what
it told.
"""

from __future__ import annotations

from typing import Any, Literal

import agents
import anyio
import openai
import pytest

from tests.clients.client_code import SECONDS, run_client
from tests.helpers.dummy_checkpoint import IM_END, dummy_tokenizer
from tests.helpers.server import Server, open_server

pytestmark = [pytest.mark.clients, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

Town = Literal["Ghent", "Lund"]
CONFIG = agents.RunConfig(tracing_disabled=True)
SOON_OVER = {"min_tokens": 8, "logit_bias": {str(dummy_tokenizer().token_to_id(IM_END)): 100}}
"""The package takes a streamed response that is cut for an error."""

MODELS = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_an_agent_calls_its_tool_and_goes_on_with_the_result(checkpoint, streamed, model):
    async with open_server(checkpoint, "--served-model-name", "tiny") as server:
        told: list[str] = []

        @agents.function_tool
        def weather(town: Town) -> str:
            """The weather of a town."""
            told.append(town)
            return f"sunny in {town}"

        def run() -> agents.result.RunResultBase:
            return anyio.run(
                ask, server, weather, streamed, MODELS[model], backend="asyncio"
            )  # the package needs asyncio's loop

        result = await run_client(run)
        items = [type(item).__name__ for item in result.new_items]
        assert items == ["ToolCallItem", "ToolCallOutputItem", "MessageOutputItem"]
        assert told in (["Ghent"], ["Lund"])
        assert result.new_items[1].output == f"sunny in {told[0]}"
        assert result.final_output
        assert result.context_wrapper.usage.requests == 2
        assert result.context_wrapper.usage.output_tokens > 0


async def ask(server: Server, tool: agents.Tool, streamed: bool, model: Any) -> agents.result.RunResultBase:
    """Both turns: the first has to call, the second may say what it likes."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0, timeout=SECONDS) as client:
        agent = agents.Agent(
            name="Harbour master",
            instructions="Be short.",
            tools=[tool],
            model=model("tiny", client),
            model_settings=agents.ModelSettings(
                tool_choice="required",
                max_tokens=60,
                temperature=0.5,
                include_usage=True,
                extra_body=SOON_OVER,
            ),
        )
        if not streamed:
            return await agents.Runner.run(agent, "How is the weather?", run_config=CONFIG, max_turns=2)
        result = agents.Runner.run_streamed(agent, "How is the weather?", run_config=CONFIG, max_turns=2)
        kinds = {event.type async for event in result.stream_events()}
        assert {"raw_response_event", "run_item_stream_event"} <= kinds
        return result
