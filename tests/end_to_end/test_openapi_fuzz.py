"""Requests made from the OpenAPI document, right and wrong ones, against a running server: every answer is one that the
document has, none is the server's fault, and none takes long.

TRILLM_FUZZ_EXAMPLES asks for more than the few of each operation that run by default, chosen anew each time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import trio
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi import checks

from app.operations import EVENT_STREAM, OPERATIONS
from tests.helpers.server import Server, open_server

FEW = 10
EXAMPLES = int(os.environ.get("TRILLM_FUZZ_EXAMPLES", FEW))
pytestmark = [pytest.mark.process] if EXAMPLES <= FEW else []  # which has 60 s

SECONDS = 20
"""For one answer, on a busy machine."""
HOLDING = {"sleep", "pause", "startProfile"}
"""Operations that would keep the others from being answered, or write files."""
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


def ask(case: schemathesis.Case, session: requests.Session) -> None:
    response = case.call(session=session, timeout=SECONDS)
    asked_for = (501, 504) if isinstance(case.body, dict) and "timeout" in case.body else (501,)
    assert response.status_code < 500 or response.status_code in asked_for, f"{case.as_curl_command()}\n{response.text}"
    if EVENT_STREAM in response.headers["content-type"][0]:
        # Of a stream the document has the text as a whole; schemathesis would hold each event against that, and leaves
        # after the first ones.
        assert response.text.startswith(("data: ", "event: "))
        case.validate_response(response, checks=CHECKS[:-1])
    else:
        case.validate_response(response, checks=CHECKS)


def ask_all(url: str, names: list[str], modes: list[schemathesis.GenerationMode]) -> int:
    """How many requests were sent; in a thread."""
    sent = 0
    with requests.Session() as session:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        for result in schema.get_all_operations():
            operation = result.ok()
            if operation.definition.raw["operationId"] not in names:
                continue
            for mode in modes:

                @settings(
                    max_examples=EXAMPLES,
                    database=None,
                    derandomize=EXAMPLES <= FEW,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
                @given(operation.as_strategy(generation_mode=mode))
                def fuzz(case: schemathesis.Case) -> None:
                    nonlocal sent
                    sent += 1
                    ask(case, session)

                fuzz()
    return sent


async def fuzzed(server: Server, names: list[str], *modes: schemathesis.GenerationMode) -> int:
    return await trio.to_thread.run_sync(ask_all, server.url, names, list(modes))


def names_of(has_body: bool) -> list[str]:
    return [op.name for op in OPERATIONS if (op.body is not None) == has_body and op.name not in HOLDING]


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
async def test_every_answer_to_generated_bodies_is_a_documented_one(checkpoint: Path, mode: Any) -> None:
    async with open_server(checkpoint, "--max-model-len", "128") as server:
        actors = server.children()
        names = names_of(has_body=True)
        assert await fuzzed(server, names, mode) >= len(names) * EXAMPLES // 2
        assert {name: pid for name, pid in server.children().items() if name in actors} == actors
        with trio.fail_after(5):
            while await server.num_requests() > 0:
                await trio.sleep(0.02)
        assert await server.gauge("kv_cache_usage_perc") == 0


async def test_every_answer_to_requests_without_a_body_is_a_documented_one(checkpoint: Path) -> None:
    async with open_server(checkpoint) as server:
        names = names_of(has_body=False)
        assert await fuzzed(server, names, schemathesis.GenerationMode.POSITIVE) >= len(names)
