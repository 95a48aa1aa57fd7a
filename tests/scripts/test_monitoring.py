"""Dashboard, alerts and the example for Prometheus ask for what /metrics tells, by labels that it has."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from actors.handles import ActorState
from app.lora_metrics import LoraCollector
from app.response_metrics import ResponseCollector
from app.responses.background import BackgroundResponses
from app.tool_metrics import ToolCollector
from app.tools.call_counts import CallCounts
from protocol.engine_stats import STEP_TOKENS_BOUNDS, EngineStats
from protocol.ids import Epoch
from protocol.kv import KV_FAILURES, KvCounts
from tests.helpers.app_under_test import make_app
from tests.helpers.stored_responses import Disk, make_store, now

DEPLOY = Path(__file__).parents[2] / "scripts" / "deploy"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
PROMETHEUS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
DRAWN = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
NAMES = re.compile(r"\b(?:vllm:|trillm[:_]|http_|process_|instance(?:_model)?:)[\w:]+|\bup\b")
OF_SCRAPES = {"job", "instance", "le"}
"""Labels that Prometheus adds, or that a histogram's buckets have."""


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DRAWN for target in panel["targets"]]
    variables = [variable["definition"] for variable in BOARD["templating"]["list"] if "definition" in variable]
    notes = [note["expr"] for note in BOARD["annotations"]["list"] if "expr" in note]
    return [*panels, *variables, *notes, *(rule["expr"] for rule in RULES)]


async def told() -> dict[str, set[str]]:
    """The samples of a server that does everything, with their labels."""
    app = make_app()
    app.engine.stats = EngineStats(
        spec_decode_accepted_by_position=[3, 1],
        steps_by_tokens=[1] * (len(STEP_TOKENS_BOUNDS) + 1),
        kv=KvCounts(epoch=Epoch(1), kv_epoch=Epoch(1), frames={"free": 1}),
    )
    app.engine.states = [ActorState("engine-0", Epoch(1), 17, True, "step", 0.0, 0.25, 1.0, 0, None)]
    store = make_store(disk=Disk())
    app.services.metrics.add(ResponseCollector(store, BackgroundResponses(store), now, "m"))
    counts = CallCounts()
    counts.add_label("notes")
    app.services.metrics.add(ToolCollector(counts, lambda: 0, "m"))
    app.services.metrics.add(LoraCollector(app.engine, 4, now))
    await app.complete("a", max_tokens=3)
    page = (await app.get("/metrics")).text
    found = {
        sample.name: set(sample.labels) for family in text_string_to_metric_families(page) for sample in family.samples
    }
    return found | {"up": set()} | {name: {"model_name"} for name in RECORDED}


async def test_every_expression_asks_for_series_and_labels_that_a_server_tells() -> None:
    series = await told()
    for expression in expressions():
        names = set(NAMES.findall(re.sub(r'"[^"]*"', '""', expression)))
        assert names, expression
        assert names <= series.keys(), expression
        have = OF_SCRAPES.union(*(series[name] for name in names))
        asked = re.findall(r'(\w+)(?:=~|!~|!=|=)"', expression)
        grouped = [label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")]
        assert {*asked, *grouped} <= have, expression


async def test_series_that_are_selected_by_a_label_have_it_each() -> None:
    """A name that some series of an expression have not, would find nothing."""
    series = await told()
    for expression in expressions():
        for name, selected in re.findall(r"([\w:]+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)", selected)) <= series[name] | OF_SCRAPES, expression


def test_failures_of_connectors_are_called_by_their_names() -> None:
    [kinds] = re.findall(r'kind=~"([^"]+)"', "".join(rule["expr"] for rule in RULES))
    assert set(kinds.split("|")) < set(KV_FAILURES), "an export that expires is nobody's failure"


def test_each_panel_can_be_read_by_itself() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert len({panel["title"] for panel in BOARD["panels"]}) == len(ids)
    for panel in DRAWN:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["targets"], panel["title"]


def test_panels_lie_beside_each_other() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in BOARD["panels"])
        for x, y in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


def test_the_board_can_be_had_of_any_prometheus_and_of_one_server_alone() -> None:
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "model", "instance"]
    sources = {target["datasource"]["uid"] for panel in DRAWN for target in panel["targets"]}
    assert sources == {"${datasource}"}
    for panel in DRAWN:
        for target in panel["targets"]:
            assert 'instance=~"$instance"' in target["expr"], panel["title"]
    assert (BOARD["schemaVersion"], BOARD["id"]) == (39, None)


def test_who_is_told_hears_what_to_do() -> None:
    alerts = [rule for rule in RULES if "alert" in rule]
    assert len({alert["alert"] for alert in alerts}) == len(alerts) > 10
    for alert in alerts:
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"]["summary"]
        assert alert["annotations"]["description"].endswith(".")


def test_every_alert_and_every_record_is_tried() -> None:
    tried = (DEPLOY / "prometheus-rules-test.yaml").read_text()
    for rule in RULES:
        assert f'alertname="{rule["alert"]}"' in tried if "alert" in rule else f"expr: {rule['record']}" in tried


def test_the_example_scrapes_what_the_alerts_speak_of() -> None:
    [job] = PROMETHEUS["scrape_configs"]
    assert PROMETHEUS["rule_files"] == ["prometheus-rules.yaml"]
    assert re.fullmatch("trillm.*", job["job_name"])
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8000"]}]
    [pattern] = {found for rule in RULES for found in re.findall(r'job=~"([^"]+)"', rule["expr"])}
    assert pattern == "trillm.*", "also what kubernetes/service-monitor.yaml names after its services"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yaml"),
        ("check", "rules", "prometheus-rules.yaml"),
        ("test", "rules", "prometheus-rules-test.yaml"),
    ],
    ids=" ".join,
)
def test_prometheus_takes_them_and_the_alerts_come_when_they_should(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=DEPLOY, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
