"""Embeddings from one end to the other: with OpenAI's own client, beside generating ones, and while the engine dies."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import openai
import pytest
import trio

from tests.helpers.server import Server, open_server

pytestmark = pytest.mark.process

TEXTS = ["The harbour was quiet.", "Boats!", "Wait and see. " * 30, "412"]


async def with_openai(server: Server, call: Callable[[openai.OpenAI], None]) -> None:
    """Run a function of the official (blocking) client."""

    def run() -> None:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0, timeout=30) as client:
            call(client)

    await trio.to_thread.run_sync(run)


async def test_the_official_client_reads_vectors_in_either_encoding(checkpoint):
    async with open_server(checkpoint, "--served-model-name", "tiny", "--api-key", "k") as server:

        def ask(client: openai.OpenAI) -> None:
            packed = client.embeddings.create(model="tiny", input=TEXTS)  # which it asks for in base64
            plain = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
            assert [one.embedding for one in packed.data] == [one.embedding for one in plain.data]
            assert [one.index for one in packed.data] == [0, 1, 2, 3]
            assert all(math.hypot(*one.embedding) == pytest.approx(1) for one in packed.data)
            assert packed.usage.prompt_tokens == packed.usage.total_tokens > 4
            cut = client.embeddings.create(model="tiny", input=[5, 6, 7], dimensions=3)
            assert len(cut.data[0].embedding) == 3
            with pytest.raises(openai.BadRequestError) as caught:
                client.embeddings.create(model="tiny", input="boats " * 3000)
            assert caught.value.code == "context_length_exceeded"

        await with_openai(server, ask)
        assert await server.gauge("prompt_tokens_total") > 0
        assert await server.num_requests() == 0


async def test_embeddings_go_on_when_the_engine_dies_under_them(checkpoint):
    async with open_server(checkpoint, "--dummy-step-seconds", "0.02", "--max-num-batched-tokens", "32") as server:
        body = {"input": [f"{text} {i}" for i in range(20) for text in TEXTS]}
        async with server.client() as http:
            expected = (await http.post("/v1/embeddings", json=body)).json()["data"]
            replies = []

            async def ask() -> None:
                replies.append(await http.post("/v1/embeddings", json=body))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                with trio.fail_after(20):
                    while await server.num_requests() == 0:
                        await trio.sleep(0.02)
                os.kill(server.children()["engine-0"], 9)
            assert replies[0].status_code == 200
            assert replies[0].json()["data"] == expected
