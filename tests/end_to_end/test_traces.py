"""Traces of a real server's requests, as a collector gets them."""

from __future__ import annotations

import itertools
import signal

import pytest
import trio

from tests.helpers.otlp_collector import OtlpCollector, ToldSpan, open_collector
from tests.helpers.server import Server, open_server

pytestmark = pytest.mark.process

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID, SPAN_ID = CALLER.split("-")[1:3]


CHAIN = ("queue", "prefill", "decode", "deliver", "send")
"""One after the other, from when the engine has it to the last byte."""


def traced(collector: OtlpCollector) -> tuple[str, str]:
    return ("--otlp-traces-endpoint", collector.url)


def check_nesting(span: ToldSpan) -> None:
    for child in span.children:
        assert child.trace_id == span.trace_id
        assert span.began <= child.began <= child.ended <= span.ended, (span, child)
        check_nesting(child)


async def complete(server: Server, body: dict, **headers: str) -> None:
    async with server.client() as http:
        reply = await http.post("/v1/completions", json={"prompt": "once upon"} | body, headers=headers)
        assert reply.status_code == 200, reply.text


async def test_a_request_is_a_span_whose_phases_lie_within_it_and_add_up(checkpoint):
    async with open_collector() as collector:
        flags = (*traced(collector), "--dummy-step-seconds", "0.02")
        named = {"OTEL_SERVICE_NAME": "mine", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=of-tidings"}
        async with open_server(checkpoint, *flags, **SOON, **named) as server:
            await complete(
                server,
                {"max_tokens": 8, "temperature": 0.5, "ignore_eos": True},
                traceparent=CALLER,
                tracestate="a=b",
                **{"X-Request-Id": "label-1"},
            )
            [root] = await collector.until(1)
            async with server.client() as http:
                metrics = (await http.get("/metrics")).text
            line = next(line for line in server.log if "POST /v1/completions" in line)

    assert (root.trace_id, root.parent_id, root.state) == (TRACE_ID, SPAN_ID, "a=b")
    assert root.kind == 2  # SERVER
    assert not root.is_error
    check_nesting(root)
    assert {child.name for child in root.children} == {"tokenise", "detokenise"} | set(CHAIN)
    chain = [root.only(name) for name in CHAIN]
    for before, after in itertools.pairwise(chain):
        assert abs(before.ended - after.began) <= 1000
    assert root.only("decode").seconds >= 7 * 0.02
    assert chain[-1].ended == root.ended
    told = root.attributes
    assert told["gen_ai.request.max_tokens"] == 8
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.usage.completion_tokens"] == told["gen_ai.usage.output_tokens"] == 8
    assert told["gen_ai.usage.prompt_tokens"] > 0
    assert told["gen_ai.request.id"].startswith("cmpl-")
    assert told["http.response.status_code"] == 200
    assert told["trillm.request.label"] == "label-1"
    assert 0 < told["gen_ai.latency.time_to_first_token"] < told["gen_ai.latency.e2e"]
    assert told["gen_ai.latency.e2e"] == pytest.approx(root.seconds, abs=1e-3)
    assert root.resource["service.name"] == "mine"
    assert collector.headers["x-key"] == "of-tidings"
    assert f"trace={TRACE_ID}" in line
    assert 'trillm:trace_spans_total{model_name="' in metrics
    assert not [line for line in server.log if "WARNING" in line or "ERROR" in line]


async def test_a_request_that_goes_on_after_a_death_says_so_and_is_one_span(checkpoint):
    async with open_collector() as collector:
        flags = (*traced(collector), "--dummy-step-seconds", "0.02")
        async with open_server(checkpoint, *flags, **SOON) as server, trio.open_nursery() as nursery:
            nursery.start_soon(complete, server, {"max_tokens": 60, "ignore_eos": True, "n": 2})
            with trio.fail_after(10):
                while await server.num_requests() < 2:
                    await trio.sleep(0.02)
            await trio.sleep(0.2)
            await server.kill("engine-0")
            [root] = await collector.until(1)

    check_nesting(root)
    names = [name for name, _ in root.events]
    assert names.count("interrupted") == names.count("replay") == 2
    replay = next(attributes for name, attributes in root.events if name == "replay")
    assert replay["trillm.lost"].startswith("engine-0 epoch ")
    assert replay["trillm.engine"].startswith("engine-0 epoch ")
    assert replay["trillm.engine"] != replay["trillm.lost"]
    assert replay["trillm.num_tokens_told"] > 0
    sequences = [child for child in root.children if child.name == "sequence"]
    assert [sequence.attributes["trillm.index"] for sequence in sequences] == [0, 1]
    assert all(sequence.attributes["gen_ai.usage.output_tokens"] == 60 for sequence in sequences)
    assert [span.name for span in sequences[0].children][:3] == ["queue", "prefill", "decode"]


@pytest.mark.parametrize("how", [{"hangs": True}, {"status": 404}])
async def test_a_collector_that_does_not_work_costs_no_request_anything_and_one_line(checkpoint, how):
    async with open_collector(**how) as collector:
        timeout = {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1"}
        async with open_server(checkpoint, *traced(collector), **SOON, **timeout) as server:
            with trio.fail_after(10):
                while not (told := [line for line in server.log if "could not be sent" in line]):
                    await complete(server, {"max_tokens": 2})
                    await trio.sleep(0.05)
            for _ in range(5):
                await complete(server, {"max_tokens": 2})
            server.signal(signal.SIGTERM)
            with trio.fail_after(10):
                assert await server.wait() == 0
            await server.until_silent()
            told = [line for line in server.log if "traces: " in line]

    assert len([line for line in told if "could not be sent" in line]) == 1
    assert ("HTTP 404" if "status" in how else "in time") in told[0]
    assert not any("Traceback" in line for line in server.log)


async def test_who_is_not_sampled_is_not_sent_and_each_api_server_names_itself(checkpoint):
    async with open_collector() as collector:
        flags = (*traced(collector), "--api-server-count", "2")
        async with open_server(checkpoint, *flags, **SOON) as server:
            for _ in range(4):
                await complete(server, {"max_tokens": 1}, traceparent=CALLER[:-1] + "0")
            for _ in range(12):
                await complete(server, {"max_tokens": 1})
            roots = await collector.until(12)

    assert all(root.trace_id != TRACE_ID for root in roots)
    assert len(roots) == 12
    instances = {root.resource["service.instance.id"] for root in roots}
    servers = {root.resource["trillm.api_server"] for root in roots}
    assert len(instances) == len(servers)
    assert servers <= {0, 1}
