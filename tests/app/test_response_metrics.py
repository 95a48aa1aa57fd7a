"""What /metrics tells of stored and background responses, and of calls of MCP tools."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly

from app.factory import create_app
from app.response_metrics import ResponseCollector
from app.responses.background import BackgroundResponses
from app.responses.store import MEASURE_SECONDS
from app.schemas.responses import McpCallItem, ResponseTool
from app.tool_metrics import ToolCollector
from app.tools.address import ToolServer
from app.tools.allow_list import AllowedServers
from app.tools.servers import McpServers
from app.tools.sessions import ToolSessions
from tests.app.tools.network import NAMED, ONE, Network
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.stored_responses import Disk, make_store, now

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")


async def samples(app: AppUnderTest) -> dict[tuple[str, ...], float]:
    """By name and the values of labels in their order, but for the model's name."""
    page = await app.send("GET", "/metrics", b"", Accept="application/openmetrics-text")
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "model_name")): sample.value
        for family in strictly(page.text)
        for sample in family.samples
    }


def storing(disk: Disk) -> AppUnderTest:
    app = make_app()
    store = make_store(disk=disk)
    services = attrs.evolve(app.services, response_keeper=store, background=BackgroundResponses(store))
    services.metrics.add(ResponseCollector(store, services.background, lambda: now() + 60, "m"))
    return AppUnderTest(create_app(services), app.engine, services)


async def test_stored_and_background_responses_are_told(nursery, autojump_clock):
    app = storing(Disk())
    nursery.start_soon(app.services.background.run)
    before = await samples(app)
    app.engine.hold()
    for _ in range(2):
        assert (await app.post("/v1/responses", input="Hi", background=True)).status_code == 200
    await trio.testing.wait_all_tasks_blocked()
    await trio.sleep(MEASURE_SECONDS)
    after = await samples(app)

    assert before["trillm:stored_responses",] == before["trillm:stored_responses_oldest_seconds",] == 0
    assert after["trillm:stored_responses",] == 2
    assert after["trillm:stored_responses_bytes",] > 1000
    assert after["trillm:stored_responses_oldest_seconds",] == 60
    assert after["trillm:background_responses", "in_progress"] == 2
    assert after["trillm:background_responses", "queued"] == 0
    app.services.background.end_all("It is enough")
    await app.services.background.finish()
    assert (await samples(app))["trillm:background_responses", "in_progress"] == 0


async def test_a_disk_that_is_slow_or_fails_delays_no_scrape_for_long(nursery, autojump_clock):
    disk = Disk()
    app = storing(disk)
    assert (await app.post("/v1/responses", input="Hi")).status_code == 200
    assert (await samples(app))["trillm:stored_responses",] == 1
    asked = disk.num_calls
    await samples(app)
    assert disk.num_calls == asked, "it is not counted again at once"
    disk.failure = OSError("gone")
    await app.post("/v1/responses", input="Hi")
    await trio.sleep(MEASURE_SECONDS)

    found = await samples(app)

    assert found["trillm:stored_responses",] == 1


async def test_calls_are_counted_by_the_operator_s_labels_and_requests_servers_as_one(nursery, autojump_clock):
    network = Network()
    sessions = ToolSessions(connect=network.connect, call_seconds=5)
    servers = McpServers(sessions, [ToolServer(NAMED, "ours")], AllowedServers.of((ONE,)))
    app = make_app()
    app.services.metrics.add(ToolCollector(servers.counts, lambda: servers.num_sessions, "m"))
    before = await samples(app)
    nursery.start_soon(servers.run)
    await trio.testing.wait_all_tasks_blocked()

    async def call(label: str, url: str | None, name: str, arguments: str) -> None:
        tool = ResponseTool(type="mcp", server_label=label, server_url=url, require_approval="never")
        box = await servers.open([tool], [])
        await box.call(
            McpCallItem(id="mcp_1", server_label=label, name=name, arguments=arguments, status="in_progress")
        )

    await call("ours", None, "add", '{"a": 1, "b": 2}')
    await call("ours", None, "fail", '{"reason": "no"}')
    await call("ours", None, "slow", "{}")
    with trio.move_on_after(1):
        await call("ours", None, "slow", "{}")
    await call("theirs", ONE, "add", '{"a": 1, "b": 2}')
    await call("others", ONE, "add", '{"a": 1, "b": 2}')
    found = await samples(app)

    calls = {key[1:]: value for key, value in found.items() if key[0] == "trillm:mcp_calls_total"}
    assert {key: value for key, value in calls.items() if value} == {
        ("completed", "ours"): 1,
        ("failed", "ours"): 1,
        ("timed_out", "ours"): 1,
        ("cancelled", "ours"): 1,
        ("completed", "request"): 2,
    }
    assert {key[2] for key in before if key[0] == "trillm:mcp_calls_total"} == {"ours", "request"}
    assert found["trillm:mcp_call_seconds_count",] == 6
    assert found["trillm:mcp_call_seconds_sum",] == pytest.approx(6, abs=0.1)
    assert (before["trillm:mcp_sessions",], found["trillm:mcp_sessions",]) == (0, 2)
