"""A request through the proxy is one trace: the client's, the proxy's and the servers' spans."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from app.proxy.passed_headers import with_trace
from app.tracing.otel import OtelSource
from app.tracing.start import Tracing
from app.tracing.trace_context import read_trace_context
from tests.helpers.fake_upstreams import open_proxy_under_test

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def tracing(spans: list[ReadableSpan]) -> Tracing:
    return Tracing(OtelSource(Resource({}), spans.append, "1"), None, reads_callers=True)


async def test_the_servers_are_told_of_the_proxy_s_span_which_is_part_of_the_client_s():
    spans: list[ReadableSpan] = []
    async with open_proxy_under_test(tracing=tracing(spans)) as proxy:
        await proxy.ask({"prompt": "Hi"}, traceparent=CALLER, tracestate="a=b")
        [prefill], [decode] = proxy.requests("p0"), proxy.requests("d0")
    [root] = [span for span in spans if span.name == "llm_request"]

    assert f"{root.context.trace_id:032x}" == CALLER.split("-")[1]
    assert f"{root.parent.span_id:016x}" == CALLER.split("-")[2]
    ours = f"00-{root.context.trace_id:032x}-{root.context.span_id:016x}-01"
    assert prefill.values("traceparent") == decode.values("traceparent") == [ours]
    assert decode.values("tracestate") == ["a=b"]
    assert (root.attributes["trillm.proxy.prefill"], root.attributes["trillm.proxy.decode"]) == (
        "http://p0",
        "http://d0",
    )
    assert root.attributes["trillm.proxy.way"] == "handed_over"
    assert "gen_ai.usage.output_tokens" not in root.attributes  # which the servers know
    assert [span.name for span in spans if span.parent and span.parent.span_id == root.context.span_id] == [
        *("prefill", "begin_answer"),
    ]


async def test_who_is_not_sampled_is_not_sampled_behind_it_either():
    spans: list[ReadableSpan] = []
    async with open_proxy_under_test(tracing=tracing(spans)) as proxy:
        await proxy.ask({"prompt": "Hi"}, traceparent=CALLER[:-1] + "0")
        [decode] = proxy.requests("d0")

    assert spans == []
    found = read_trace_context([(b"traceparent", decode.values("traceparent")[0].encode())])
    assert found is not None
    assert not found.is_sampled


@pytest.mark.parametrize("state", ["", "a=1,b=2"])
def test_a_client_s_own_headers_are_replaced(state):
    found = read_trace_context([(b"traceparent", CALLER.encode()), (b"tracestate", state.encode())])
    assert found is not None
    headers = with_trace([(b"traceparent", b"theirs"), (b"tracestate", b"theirs"), (b"x", b"y")], found)

    expected = [(b"x", b"y"), (b"traceparent", CALLER.encode())]
    assert headers == expected + [(b"tracestate", state.encode())] * bool(state)
