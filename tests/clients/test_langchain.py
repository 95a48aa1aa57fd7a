"""langchain-openai: answers, streams, structured outputs and bound tools."""

from __future__ import annotations

from typing import Literal

import pydantic
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

from tests.clients.client_code import SECONDS, run_client
from tests.helpers.server import open_server

pytestmark = [pytest.mark.clients, pytest.mark.process, pytest.mark.filterwarnings("ignore")]


class Catch(pydantic.BaseModel):
    """What a boat brought home."""

    boat: Literal["barge", "ferry"]
    fresh: bool


@tool
def moor(boat: Literal["barge", "ferry"]) -> str:
    """Moor a boat."""
    return f"{boat} is moored"


async def test_a_chain_s_model(checkpoint):
    async with open_server(checkpoint, "--served-model-name", "tiny") as server:
        fields = {"model": "tiny", "base_url": f"{server.url}/v1", "api_key": "k", "temperature": 0}
        fields |= {"max_retries": 0, "timeout": SECONDS}

        def use() -> None:
            chat = ChatOpenAI(**fields, max_tokens=12)
            plain = chat.invoke([("system", "Be short."), ("human", "Tell me of boats.")])
            assert plain.content
            assert plain.usage_metadata["output_tokens"] <= 12
            pieces = list(chat.stream([("system", "Be short."), ("human", "Tell me of boats.")], stream_usage=True))
            assert "".join(piece.content for piece in pieces) == plain.content
            assert sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata) > 0
            assert len(chat.batch(["one", "two", "three"])) == 3
            assert OpenAI(**fields, max_tokens=5).invoke("The sky is")

        await run_client(use)


async def test_structured_outputs_and_tools(checkpoint):
    async with open_server(checkpoint, "--served-model-name", "tiny") as server:
        chat = ChatOpenAI(
            model="tiny",
            base_url=f"{server.url}/v1",
            api_key="k",
            temperature=1,
            seed=5,
            max_tokens=100,
            max_retries=0,
            timeout=SECONDS,
        )

        def use() -> None:
            for method in ("json_schema", "function_calling"):
                assert isinstance(chat.with_structured_output(Catch, method=method).invoke("What came home?"), Catch)
            asked = chat.bind_tools([moor], tool_choice="any").invoke("Moor one of them.")
            [call] = asked.tool_calls
            assert call["name"] == "moor"
            done = moor.invoke(call)
            assert done.content.endswith("is moored")
            again = chat.invoke([("human", "Moor one of them."), asked, done])
            assert isinstance(again.content, str)
            chunks = None
            for chunk in chat.bind_tools([moor], tool_choice="moor").stream("Moor one of them."):
                chunks = chunk if chunks is None else chunks + chunk
            assert chunks.tool_calls[0]["args"]["boat"] in ("barge", "ferry")

        await run_client(use)
