"""Has the served model use the tools of scripts/examples/notes.py, by OpenAI's client (`pip install openai`).

    scripts/serve --tool-server "notes=stdio:.venv/bin/python scripts/examples/notes.py"
    .venv/bin/python scripts/examples/ask_notes.py          # in another terminal

Three requests: one is followed as it is answered; in the second you are asked before the tool is called; the third goes
on without a reader, who comes back, and finds what the second has added. OPENAI_BASE_URL says where the server is,
OPENAI_API_KEY its key if it has one.

The default model is never shown the tools, so each first call is forced (`tool_choice`), and `instructions` say the
rest. A model that knows tools needs neither.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable

import openai
from openai.types.responses import Response, ResponseOutputItem, ResponseStreamEvent, ToolChoiceMcpParam
from openai.types.responses.tool_param import Mcp

NOTES: Mcp = {"type": "mcp", "server_label": "notes", "require_approval": {"never": {"tool_names": ["search_notes"]}}}
"""The label is the server's own, from its --tool-server. What is not named may be called only after a yes."""
SEARCH = "Search the notes with a few words of the question. Then answer in one short sentence with what the notes say."
KEEP = "Keep notes in few words."


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    client = openai.OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    try:
        model = next(iter(client.models.list())).id
        ask(client, model)
        ask_with_approval(client, model)
        ask_in_background(client, model)
    except openai.APIConnectionError:
        sys.exit(f"No server answers at {client.base_url} (OPENAI_BASE_URL): see the first lines of this file.")
    except openai.APIError as error:
        sys.exit(f"The server at {client.base_url} says: {error.message}")
    except (EOFError, KeyboardInterrupt):
        sys.exit("\nNobody is there to ask: the rest is left out.")


def ask(client: openai.OpenAI, model: str) -> None:
    question = "Where is the key to the shed?"
    print(f"1. {question}")
    show(
        client.responses.create(
            model=model,
            instructions=SEARCH,
            input=question,
            tools=[NOTES],
            tool_choice=first("search_notes"),
            temperature=0,
            max_output_tokens=200,
            stream=True,
        )
    )


def ask_with_approval(client: openai.OpenAI, model: str) -> None:
    wish = "Add a note: the library closes at six."
    print(f"\n2. {wish}")
    response = show(
        client.responses.create(
            model=model,
            instructions=KEEP,
            input=wish,
            tools=[NOTES],
            tool_choice=first("add_note"),
            temperature=0,
            max_output_tokens=200,
            stream=True,
        )
    )
    for item in response.output:
        if item.type != "mcp_approval_request":
            continue
        approve = input("   Allow it? [y/n] ").strip().lower() == "y"
        show(
            client.responses.create(
                model=model,
                instructions=KEEP,
                previous_response_id=response.id,
                input=[{"type": "mcp_approval_response", "approval_request_id": item.id, "approve": approve}],
                tools=[NOTES],
                temperature=0,
                max_output_tokens=200,
                stream=True,
            )
        )


def ask_in_background(client: openai.OpenAI, model: str) -> None:
    question = "When does the library close?"
    print(f"\n3. {question}")
    response = client.responses.create(
        model=model,
        instructions=SEARCH,
        input=question,
        tools=[NOTES],
        tool_choice=first("search_notes"),
        temperature=0,
        max_output_tokens=200,
        background=True,
    )
    print(f"   {response.status}: it needs no client")
    with client.responses.retrieve(response.id, stream=True) as stream:
        calls = (event.sequence_number for event in stream if event.type == "response.mcp_call.in_progress")
        last = next(calls, 0)
    print(f"   a reader leaves after event {last}, and comes back")
    show(client.responses.retrieve(response.id, stream=True, starting_after=last))
    response = client.responses.retrieve(response.id)
    print(f"   kept as {response.id}, {response.status}")


def first(tool: str) -> ToolChoiceMcpParam:
    """What the model has to do first; after that it says something, or calls more."""
    return {"type": "mcp", "server_label": "notes", "name": tool}


def show(events: Iterable[ResponseStreamEvent]) -> Response:
    """Prints items as they come. Exactly one event ends a response."""
    for event in events:
        match event.type:
            case "response.output_item.done":
                show_item(event.item)
            case "response.content_part.added":
                print("   ", end="")
            case "response.output_text.delta":
                print(event.delta, end="", flush=True)
            case "response.completed" | "response.incomplete" | "response.failed":
                if event.response.error is not None:
                    print(f"   {event.response.error.message}")
                return event.response
    raise SystemExit("the connection ended before the response did")


def show_item(item: ResponseOutputItem) -> None:
    match item.type:
        case "mcp_list_tools":
            print(f"   tools: {item.error or ', '.join(tool.name for tool in item.tools)}")
        case "mcp_approval_request":
            print(f"   wants to call {item.name} {item.arguments}")
        case "mcp_call":
            print(f"   called {item.name} {item.arguments}\n   {item.error or item.output}")
        case "message":
            print()


if __name__ == "__main__":
    main()
