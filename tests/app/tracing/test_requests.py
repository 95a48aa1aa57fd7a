"""What becomes of requests in their traces: over the application with a fake engine, and spans kept in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from trio.testing import wait_all_tasks_blocked

from app.dialects.dialect import Dialect
from app.factory import create_app
from app.logs import quieten_libraries
from app.responses.background import BackgroundResponses
from app.tools.allow_list import AllowedServers
from app.tools.servers import McpServers
from app.tools.sessions import ToolSessions
from app.tracing.otel import OtelSource
from app.tracing.request_trace import MAX_SEQUENCES, current_trace
from app.tracing.start import Tracing
from protocol.errors import EngineDeadError, UnavailableError
from protocol.timeline import Timeline
from tests.app.tools.network import ONE, Network
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.asgi import Exchange, http_scope
from tests.helpers.stored_responses import make_store

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID, SPAN_ID = (int(part, 16) for part in CALLER.split("-")[1:3])


class Spans(list[ReadableSpan]):
    """All that have ended."""

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self if span.name == name]

    @property
    def root(self) -> ReadableSpan:
        [root] = self.named("llm_request")
        return root

    def told(self) -> dict[str, Any]:
        return dict(self.root.attributes)

    def inside(self, parent: ReadableSpan) -> list[str]:
        ours = [span for span in self if span.parent and span.parent.span_id == parent.context.span_id]
        return [span.name for span in sorted(ours, key=lambda span: span.start_time)]


@pytest.fixture
def spans() -> Iterator[Spans]:
    yield Spans()
    assert current_trace.get() is None


def traced(under_test: AppUnderTest, spans: Spans, *, reads_callers: bool = True, **services: Any) -> AppUnderTest:
    tracing = Tracing(OtelSource(Resource({}), spans.append, "1"), None, reads_callers)
    changed = attrs.evolve(under_test.services, tracing=tracing, **services)
    return AppUnderTest(create_app(changed), under_test.engine, changed)


async def test_a_chat_is_a_span_with_what_it_asked_for_and_got(spans: Spans) -> None:
    app = traced(make_app(), spans)
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0.5, "top_k": 7, "seed": 3}
    reply = await app.send("POST", "/v1/chat/completions", json.dumps(body).encode(), traceparent=CALLER)

    told = spans.told()
    assert spans.root.context.trace_id == TRACE_ID
    assert spans.root.parent.span_id == SPAN_ID
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.id"] == reply.json["id"]
    assert told["gen_ai.request.model"] == "owner/dummy"
    assert [told[f"gen_ai.request.{name}"] for name in ("max_tokens", "temperature", "top_k", "seed", "n")] == [
        *(4, 0.5, 7, 3, 1)
    ]
    assert told["gen_ai.usage.input_tokens"] == reply.json["usage"]["prompt_tokens"]
    assert told["gen_ai.usage.completion_tokens"] == 4
    assert told["gen_ai.response.finish_reasons"] == ("length",)
    assert (told["http.route"], told["http.response.status_code"], told["trillm.end"]) == (
        *("/v1/chat/completions", 200, "done"),
    )
    assert "error.type" not in told
    assert not any("Hi" in str(value) for span in spans for value in span.attributes.values())
    assert spans.inside(spans.root) == ["tokenise", "queue", "send"]  # the fake engine tells no times


@pytest.mark.parametrize("sent", ["", "nonsense", CALLER.upper(), CALLER + "-x"])
async def test_a_malformed_caller_is_none(spans: Spans, sent: str) -> None:
    await traced(make_app(), spans).send("POST", "/v1/completions", b'{"prompt": "a"}', traceparent=sent)

    assert spans.root.parent is None
    assert spans.root.context.trace_id not in (0, TRACE_ID)


async def test_a_malformed_state_costs_the_caller_it_and_nobody_a_line(
    spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    quieten_libraries()
    app = traced(make_app(), spans)
    await app.send("POST", "/v1/completions", b'{"prompt": "a"}', traceparent=CALLER, tracestate="a=1,nonsense")

    assert spans.root.parent.span_id == SPAN_ID
    assert spans.root.context.trace_state.to_header() == ""
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


async def test_an_operator_may_let_no_caller_decide(spans: Spans) -> None:
    app = traced(make_app(), spans, reads_callers=False)
    await app.send("POST", "/v1/completions", b'{"prompt": "a"}', traceparent=CALLER[:-1] + "0")

    assert spans.root.parent is None


async def test_who_is_not_sampled_leaves_nothing(spans: Spans) -> None:
    app = traced(make_app(), spans)
    await app.send("POST", "/v1/completions", b'{"prompt": "a"}', traceparent=CALLER[:-1] + "0")

    assert spans == []


async def test_what_does_not_run_the_model_and_who_has_no_key_leave_no_span(spans: Spans) -> None:
    app = traced(make_app(api_keys=("of-tidings",)), spans)
    await app.get("/health")
    await app.post("/tokenize", prompt="a")
    refused = await app.complete()
    assert refused.status_code == 401
    await app.send("GET", "/v1/completions", b"", authorization="Bearer of-tidings")

    assert spans == []


async def test_a_client_s_mistake_is_no_error_of_ours_and_a_failure_is(spans: Spans) -> None:
    app = traced(make_app(), spans)
    await app.complete(max_tokens=-1)
    told = spans.told()
    assert (told["http.response.status_code"], told["error.type"]) == (400, "400")
    assert spans.root.status.is_unset
    assert spans.inside(spans.root) == ["tokenise"]

    spans.clear()
    app.engine.refusal = UnavailableError("full")
    await app.complete()
    assert (spans.told()["http.response.status_code"], spans.told()["error.type"]) == (503, "503")
    assert not spans.root.status.is_ok
    assert spans.root.status.description == "503"
    assert [event.name for event in spans.root.events] == []


async def test_a_stream_that_fails_is_an_error_though_its_status_was_200(spans: Spans) -> None:
    app = traced(make_app(dies_after=2), spans)
    await app.complete(stream=True)

    told = spans.told()
    assert told["http.response.status_code"] == 200
    assert told["error.type"] == spans.root.status.description
    assert told["trillm.end"].startswith("error ")
    assert EngineDeadError("").status == 500


async def test_a_client_that_leaves_ends_the_span_where_it_was(spans: Spans) -> None:
    app = traced(make_app(), spans)
    app.engine.hold()
    scope = http_scope("POST", "/v1/completions", [(b"content-type", b"application/json")])
    exchange = Exchange(scope, b'{"prompt": "a"}')
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, app.app)
        await wait_all_tasks_blocked()
        exchange.disconnected.set()

    assert spans.told()["trillm.end"] == "client left"
    assert spans.named("queue")[0].attributes["trillm.unfinished"] is True
    assert spans.root.status.is_unset


async def test_several_choices_are_several_spans_and_many_are_only_counted(spans: Spans) -> None:
    app = traced(make_app(), spans)
    await app.complete(prompt=["a", "b"], n=2, max_tokens=2)
    assert [span.attributes["trillm.index"] for span in spans.named("sequence")] == [0, 1, 2, 3]
    assert spans.told()["gen_ai.usage.num_sequences"] == 4

    spans.clear()
    await app.post("/v1/embeddings", input=["a"] * 40)
    told = spans.told()
    assert told["gen_ai.operation.name"] == "embeddings"
    assert "gen_ai.request.max_tokens" not in told
    assert len(spans.named("sequence")) <= MAX_SEQUENCES * 2
    assert (
        len(spans.named("sequence")) + told["trillm.num_sequences_untold"] == told["gen_ai.usage.num_sequences"] == 40
    )


def asked_with_tools() -> dict[str, Any]:
    tools = [{"type": "mcp", "server_label": "one", "server_url": ONE, "require_approval": "never"}]
    return {"input": "How much?", "tools": tools}


def calling(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': f'one__{name}', 'arguments': arguments})}\n</tool_call>"


@pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")
@pytest.mark.parametrize("background", [False, True])
async def test_turns_and_calls_of_tools_are_spans_and_the_server_is_told(
    spans: Spans, nursery: trio.Nursery, background: bool
) -> None:
    network, store = Network(), make_store()
    script = [calling("add", a=2, b=3), calling("fail", reason="no"), "It is five."]
    plain = make_app(
        dialect=Dialect("hermes"), max_model_len=100_000, tokens_per_delta=4, reply=lambda prompt, index: script.pop(0)
    )
    sessions = ToolSessions(connect=network.connect, call_seconds=60)
    servers = McpServers(sessions, [], AllowedServers.of((ONE,)), store)
    nursery.start_soon(servers.run)
    responses = BackgroundResponses(store)
    nursery.start_soon(responses.run)
    app = traced(plain, spans, tool_servers=servers, response_keeper=store, background=responses)
    body = json.dumps(asked_with_tools() | {"background": background}).encode()
    await app.send("POST", "/v1/responses", body, traceparent=CALLER)
    with trio.fail_after(10):
        while responses.num_live or script:
            await trio.sleep(0.01)
    await wait_all_tasks_blocked()

    if background:
        asked, worked = sorted(spans.named("llm_request"), key=lambda span: span.start_time)
        assert spans.inside(asked)[-1] == "llm_request"
        assert worked.attributes["trillm.background"] is True
    else:
        worked = spans.root
    assert {span.context.trace_id for span in spans} == {TRACE_ID}
    inside = spans.inside(worked)
    assert [name for name in inside if name in ("generate", "send") or name.startswith("execute")] == [
        *("generate", "execute_tool add", "generate", "execute_tool fail", "generate", "send"),
    ]
    [add], [fail] = spans.named("execute_tool add"), spans.named("execute_tool fail")
    assert add.attributes["trillm.mcp.server_label"] == "one"
    assert (add.status.is_unset, fail.status.is_unset) == (True, False)
    [meta] = network.seen.metas
    assert meta["traceparent"] == f"00-{TRACE_ID:032x}-{add.context.span_id:016x}-01"


async def test_the_log_s_line_names_the_trace(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="trillm.access")
    app = traced(make_app(), spans)
    await app.send("POST", "/v1/completions", b'{"prompt": "a"}', traceparent=CALLER)
    await app.get("/v1/models")

    lines = [record.getMessage() for record in caplog.records if record.name == "trillm.access"]
    assert lines[0].endswith(f" trace={TRACE_ID:032x}")
    assert "trace=" not in lines[1]


def test_a_timeline_is_told_at_the_wall_clock_s_time(spans: Spans) -> None:
    from app.tracing.request_trace import Outcome
    from app.tracing.sequence import TracedSequence

    now = [100.0]
    source = OtelSource(Resource({}), spans.append, "1", lambda: now[0], lambda: 5_000_000_000_000)
    trace = source.begin(None, {})
    line = Timeline(101.0, 102.0, 103.0, 104.0)
    now[0] = 105.0
    trace.note_generation(100.5, [TracedSequence(1, 0, 2, "stop", 0, line, 104.5)])
    source.end(trace, Outcome(106.0, {}))

    assert {span.name: (span.start_time / 1e9 - 5000, span.end_time / 1e9 - 5000) for span in spans} == {
        "llm_request": (0, 6),
        "queue": (1, 2),
        "prefill": (2, 3),
        "decode": (3, 4),
        "deliver": (4, 4.5),
        "send": (4.5, 6),
    }
