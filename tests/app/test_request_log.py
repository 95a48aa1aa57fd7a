"""What requests ask for, in the log, if the operator wants it: their words only as far as wished."""

from __future__ import annotations

import attrs
import pytest

from app.factory import create_app
from app.request_log import RequestLog
from tests.helpers.app_under_test import AppUnderTest, make_app


def app_with(request_log: RequestLog) -> AppUnderTest:
    under_test = make_app()
    under_test.app = create_app(attrs.evolve(under_test.services, request_log=request_log))
    return under_test


async def messages(caplog: pytest.LogCaptureFixture, request_log: RequestLog) -> list[str]:
    caplog.set_level("INFO", logger="trillm.requests")
    await app_with(request_log).complete("The sky is\nblue", max_tokens=3, n=2, stop=["secret"], temperature=0.5)
    return [record.getMessage() for record in caplog.records if record.name == "trillm.requests"]


async def test_parameters_are_told_and_no_words(caplog: pytest.LogCaptureFixture) -> None:
    [line] = await messages(caplog, RequestLog(is_on=True))

    assert " n=2 stream=False max_tokens=3 " in line
    assert " temperature=0.5 " in line
    assert line.endswith(" stop=1")
    assert "secret" not in line
    assert "sky" not in line


async def test_prompts_are_told_as_far_as_wished(caplog: pytest.LogCaptureFixture) -> None:
    _, line = await messages(caplog, RequestLog(is_on=True, max_characters=12))

    assert line.endswith(": prompt 'The sky is\\nb'")


async def test_nothing_is_told_unasked(caplog: pytest.LogCaptureFixture) -> None:
    assert await messages(caplog, RequestLog(max_characters=12)) == []


async def test_embeddings_are_told_by_their_pooling(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="trillm.requests")
    under_test = app_with(RequestLog(is_on=True, max_characters=6))
    await under_test.post("/v1/embeddings", input=[5, 6], dimensions=3)
    await under_test.post("/v1/embeddings", input="secret")
    told = [record.getMessage().partition(": ")[2] for record in caplog.records if record.name == "trillm.requests"]

    assert told[0] == "prompt tokens 2, n=1 stream=False pooling=LAST normalize=True dimensions=3"
    assert told[2].endswith(" pooling=LAST normalize=True")
    assert told[3] == "prompt 'secret'"
