"""Many clients, each with a grammar and a word of its own: nobody gets what another asked for."""

from __future__ import annotations

import json

import httpx
import pytest
import trio

from tests.helpers.server import open_server

pytestmark = pytest.mark.process


async def complete(http: httpx.AsyncClient, **body: object) -> dict:
    reply = await http.post("/v1/completions", json={"prompt": "once", "max_tokens": 60} | body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_each_of_fifty_gets_its_own_schema_and_each_of_a_hundred_its_own_word(checkpoint):
    async with open_server(checkpoint) as server, server.client(limits=httpx.Limits(max_connections=None)) as http:
        keys: dict[int, set[str]] = {}
        words: dict[int, str] = {}

        async def ask_schema(index: int) -> None:
            schema = {
                "type": "object",
                "properties": {f"k{index}": {"enum": [f"herring {index}", "cod"]}},
                "required": [f"k{index}"],
                "additionalProperties": False,
            }
            form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
            told = await complete(http, response_format=form, n=2, logprobs=2)
            keys[index] = {key for choice in told["choices"] for key in json.loads(choice["text"])}

        async def ask_word(index: int) -> None:
            told = await complete(http, structured_outputs={"choice": [f"boat {index}"]})
            words[index] = told["choices"][0]["text"]

        async with trio.open_nursery() as nursery:
            for index in range(50):
                nursery.start_soon(ask_schema, index)
            for index in range(100):
                nursery.start_soon(ask_word, index)
        assert keys == {index: {f"k{index}"} for index in range(50)}
        assert words == {index: f"boat {index}" for index in range(100)}


async def test_nothing_that_a_client_adds_leads_out_of_its_grammar(checkpoint):
    """What the grammar forbids stays so under a bias; what it allows ends the request in one way or another."""
    async with open_server(checkpoint) as server, server.client() as http:
        forbidden = (await http.post("/tokenize", json={"prompt": " the"})).json()["tokens"][0]
        choice = {"structured_outputs": {"choice": ["boat", "barge"]}}
        for extra in (
            {"logit_bias": {str(forbidden): 100}},
            {"ignore_eos": True},
            {"ignore_eos": True, "min_tokens": 30},
            {"repetition_penalty": 50, "temperature": 2},
        ):
            told = (await complete(http, **choice, **extra))["choices"][0]
            assert told["text"] in ("boat", "barge"), extra
            assert told["finish_reason"] == "stop"
        cut = (await complete(http, **choice, max_tokens=1))["choices"][0]
        assert cut["finish_reason"] == "length"
        assert (await complete(http, **choice, stop_token_ids=list(range(100))))["choices"]
        assert await server.num_requests() == 0
