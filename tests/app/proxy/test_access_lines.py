"""The access log of a proxy names the servers by which an answer came about."""

from __future__ import annotations

import re

import pytest

from tests.helpers.fake_upstreams import answers, breaks_off, computes_prompts, open_proxy_under_test, refuses

BODY = {"model": "m", "prompt": "Hi"}


@pytest.fixture
def works(caplog):
    """Between the model and the time to the first byte, of each line so far."""
    caplog.set_level("INFO", logger="trillm.access")

    def told() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.name == "trillm.access"]
        return [re.search(r" model=\S+ (.*) first_byte=", line)[1] for line in lines]

    return told


async def test_a_line_names_the_way_and_the_servers(works):
    async with open_proxy_under_test([breaks_off, computes_prompts], [refuses(503), answers]) as proxy:
        await proxy.ask(BODY)
        await proxy.ask(BODY | {"n": 2})
        await proxy.ask({}, "/v1/embeddings")
        await proxy.ask(b"{")
    assert works() == [
        "way=handed_over prefill=http://p1 decode=http://d1",
        "way=one_server prefill=- decode=http://d1",
        "way=- prefill=- decode=http://d1",
        "way=- prefill=- decode=-",
    ]


async def test_a_line_of_what_failed_names_who_was_asked(works):
    async with open_proxy_under_test([refuses(400)], [breaks_off], api_key=("k",)) as proxy:
        await proxy.ask(BODY, authorization="Bearer k")
        proxy.upstreams["p0"].is_reachable = False
        proxy.upstreams["p0"].script = breaks_off
        await proxy.ask(BODY, authorization="Bearer k")
        await proxy.ask(BODY)
    assert works() == [
        "way=refused prefill=http://p0 decode=-",
        "way=recomputed prefill=- decode=http://d0",
        "way=- prefill=- decode=-",
    ]
