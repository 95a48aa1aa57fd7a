"""OpenAI's own client on stored and background responses, with everything that comes validated strictly."""

from __future__ import annotations

import openai
import pytest
import trio
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.clients.client_code import SECONDS
from tests.helpers.server import open_server

pytestmark = [pytest.mark.clients, pytest.mark.process]

EVENT = TypeAdapter[ResponseStreamEvent](ResponseStreamEvent)
ASK = {"model": "tiny", "input": "Tell me of boats.", "temperature": 0, "max_output_tokens": 30}


def strict(told: openai.BaseModel) -> None:
    """Raises for a field that is missing or of another type: the client itself takes anything."""
    type(told).model_validate(told.model_dump(by_alias=True))


def use(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASK, metadata={"boat": "ferry"})
    found = client.responses.retrieve(whole.id)
    strict(found)
    assert found == whole
    second = client.responses.create(**ASK | {"input": "And herring?"}, previous_response_id=whole.id)
    items = list(client.responses.input_items.list(second.id, limit=1, order="asc"))
    assert [item.type for item in items] == ["message"] * 3
    for item in items:
        strict(item)
    client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)
    with pytest.raises(openai.NotFoundError) as raised:
        client.responses.create(**ASK, previous_response_id=second.id)
    assert raised.value.code == "previous_response_not_found"
    use_in_background(client, whole)


def use_in_background(client: openai.OpenAI, whole: Response) -> None:
    begun = []
    with client.responses.create(**ASK, background=True, stream=True) as stream:
        for event in stream:
            begun.append(event)
            if event.type == "response.output_text.delta":
                break
    rest = list(
        client.responses.retrieve(
            begun[0].response.id, stream=True, starting_after=begun[-1].sequence_number, include_obfuscation=False
        )
    )
    told = [*begun, *rest]
    assert [event.sequence_number for event in told] == list(range(len(told)))
    for event in told:
        EVENT.validate_python(event.model_dump(by_alias=True))
    assert told[-1].type == f"response.{whole.status}"
    assert told[-1].response.output_text == whole.output_text
    queued = client.responses.create(
        **ASK | {"max_output_tokens": 500}, background=True, extra_body={"ignore_eos": True}
    )
    assert queued.status in ("queued", "in_progress")
    strict(queued)
    ended = client.responses.cancel(queued.id)
    strict(ended)
    assert ended.status == "cancelled"
    assert client.responses.cancel(queued.id).status == "cancelled"
    assert client.responses.retrieve(queued.id) == ended
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(client.responses.create(**ASK).id)


async def test_responses_are_retrieved_followed_cancelled_and_deleted(checkpoint):
    flags = ("--served-model-name", "tiny", "--dummy-step-seconds", "0.005")
    async with open_server(checkpoint, *flags) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0, timeout=SECONDS) as client:
            await trio.to_thread.run_sync(use, client)
