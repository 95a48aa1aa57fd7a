"""The page that Prometheus reads: its format, the series that vLLM's dashboards query, and what counts as what."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import wait_all_tasks_blocked

from app.answer import open_answer
from app.engine import Prompt
from app.http_metrics import HttpMetrics
from app.metrics import Metrics
from app.request_metrics import EndedSequence, RequestMetrics
from protocol.engine_stats import STEP_TOKENS_BOUNDS, EngineStats
from protocol.operations import RunState
from protocol.sampling import SamplingParams
from protocol.timeline import Timeline
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.clients import open_client
from tests.helpers.fake_engine import FakeEngine

HISTOGRAMS = (
    *("vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"),
    *("vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds"),
    *("vllm:request_inference_time_seconds", "vllm:request_time_per_output_token_seconds"),
    *("vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:request_max_num_generation_tokens"),
    *("vllm:request_params_n", "vllm:request_params_max_tokens", "vllm:iteration_tokens_total"),
    *("vllm:request_num_preemptions", "vllm:request_prefill_kv_computed_tokens"),
)
QUERIED = {
    **{f"{name}_bucket": {"le", "model_name", "engine"} for name in HISTOGRAMS},
    **{f"{name}_{part}": {"model_name", "engine"} for name in HISTOGRAMS for part in ("sum", "count")},
    "vllm:prompt_tokens_total": {"model_name", "engine"},
    "vllm:prompt_tokens_cached_total": {"model_name", "engine"},
    "vllm:prompt_tokens_by_source_total": {"model_name", "engine", "source"},
    "vllm:generation_tokens_total": {"model_name", "engine"},
    "vllm:request_success_total": {"model_name", "engine", "finished_reason"},
    "vllm:num_requests_running": {"model_name", "engine"},
    "vllm:num_requests_waiting": {"model_name", "engine"},
    "vllm:num_requests_waiting_by_reason": {"model_name", "engine", "reason"},
    "vllm:kv_cache_usage_perc": {"model_name", "engine"},
    "vllm:num_preemptions_total": {"model_name", "engine"},
    "vllm:prefix_cache_queries_total": {"model_name", "engine"},
    "vllm:prefix_cache_hits_total": {"model_name", "engine"},
    "vllm:spec_decode_num_drafts_total": {"model_name", "engine"},
    "vllm:spec_decode_num_draft_tokens_total": {"model_name", "engine"},
    "vllm:spec_decode_num_accepted_tokens_total": {"model_name", "engine"},
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": {"model_name", "engine", "position"},
    "vllm:engine_sleep_state": {"model_name", "engine", "sleep_state"},
    "vllm:cache_config_info": {"engine", "block_size", "num_gpu_blocks"},
    "http_requests_total": {"handler", "method", "status"},
    "http_request_duration_seconds_bucket": {"handler", "method", "le"},
    "http_request_duration_highr_seconds_bucket": {"le"},
    "http_request_size_bytes_sum": {"handler"},
    "http_response_size_bytes_count": {"handler"},
    "process_resident_memory_bytes": set(),
    "process_cpu_seconds_total": set(),
    "process_open_fds": set(),
    "python_info": {"version"},
}
"""What the dashboards among vLLM's examples ask for, of what there is here, and the labels that they select by."""
OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3"


async def a_busy_app() -> AppUnderTest:
    under_test = make_app()
    under_test.engine.stats = EngineStats(
        1, 2, 3, 64, spec_decode_accepted_by_position=[3, 1], steps_by_tokens=[1] * (len(STEP_TOKENS_BOUNDS) + 1)
    )
    await under_test.complete(["a", "b"], n=2, max_tokens=5)
    await under_test.chat(max_tokens=3, stream=True)
    await under_test.get("/v1/models/alias")
    await under_test.get("/nowhere")
    return under_test


async def samples(under_test: AppUnderTest) -> dict[tuple[str, ...], float]:
    """By name and the values of all labels but the model's and the engine's."""
    text = (await under_test.get("/metrics")).text
    return {
        (
            sample.name,
            *(value for label, value in sorted(sample.labels.items()) if label not in ("model_name", "engine")),
        ): (sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_every_series_that_vllm_s_dashboards_query_is_there_with_their_labels() -> None:
    page = (await (await a_busy_app()).get("/metrics")).text
    labels = {
        sample.name: set(sample.labels) for family in text_string_to_metric_families(page) for sample in family.samples
    }

    assert {name for name, wanted in QUERIED.items() if not wanted <= labels.get(name, {"absent"})} == set()


@pytest.mark.parametrize(("accept", "kind"), [("", "text/plain"), (OPENMETRICS, "application/openmetrics-text")])
async def test_the_page_is_well_formed_in_both_formats(accept: str, kind: str) -> None:
    reply = await (await a_busy_app()).send("GET", "/metrics", b"", Accept=accept)
    parse = strictly if kind.startswith("application") else text_string_to_metric_families
    families = list(parse(reply.text))

    assert reply.headers["Content-Type"].startswith(kind)
    assert len(families) == len({family.name for family in families}) > 50
    assert all(family.documentation and family.type != "unknown" for family in families)
    assert not re.search(r"_total_total|_bucket_bucket", reply.text)
    assert not any(
        sample.labels.get("model_name", "owner/dummy") != "owner/dummy" for f in families for sample in f.samples
    )


async def test_both_formats_tell_the_same_series() -> None:
    under_test = await a_busy_app()
    plain, strict = [
        {(sample.name, *sample.labels.items()) for family in parse(reply.text) for sample in family.samples}
        for parse, reply in (
            (text_string_to_metric_families, await under_test.get("/metrics")),
            (strictly, await under_test.send("GET", "/metrics", b"", Accept=OPENMETRICS)),
        )
    ]

    assert plain == strict


def test_a_model_s_name_may_be_anything() -> None:
    name = 'a "model"\nwith \\ everything'
    metrics = Metrics(FakeEngine(make_app().services.tokenizer), name)
    for accept, parse in (("", text_string_to_metric_families), (OPENMETRICS, strictly)):
        page, _ = metrics.render(accept)
        found = {sample.labels.get("model_name", name) for family in parse(page.decode()) for sample in family.samples}
        assert found == {name}


async def test_a_prompt_with_choices_counts_once_and_each_choice_too() -> None:
    under_test = make_app()
    await under_test.complete(["a", "The sky is"], n=3, max_tokens=4)
    found = await samples(under_test)

    assert found["vllm:request_params_n_sum",] == 6
    assert found["vllm:request_params_n_count",] == 2
    assert found["vllm:request_max_num_generation_tokens_sum",] == 8
    assert found["vllm:request_generation_tokens_sum",] == 24
    assert found["vllm:request_params_max_tokens_sum",] == 24
    assert found["vllm:request_prompt_tokens_count",] == 6


async def test_what_waits_waits_for_room_or_for_the_operator() -> None:
    under_test = make_app()
    under_test.engine.stats = EngineStats(0, 5)
    assert (await samples(under_test))["vllm:num_requests_waiting_by_reason", "capacity"] == 5
    under_test.engine.run_state = RunState(is_paused=True)
    found = await samples(under_test)

    assert found["vllm:num_requests_waiting_by_reason", "capacity"] == 0
    assert found["vllm:num_requests_waiting_by_reason", "deferred"] == 5


def test_the_phases_of_a_request_add_up() -> None:
    metrics = RequestMetrics()
    metrics.ended("stop", EndedSequence(10, 4, 5, 16, Timeline(1.0, 2.0, 4.0, 12.0, 3)))
    metrics.ended("error", EndedSequence(10, 0, 0, 16, None))
    totals = {name: distribution.total for name, _, distribution in metrics._distributions()}

    assert totals["request_queue_time_seconds"] == 1.0
    assert totals["request_prefill_time_seconds"] == 2.0
    assert totals["request_decode_time_seconds"] == 8.0
    assert totals["request_inference_time_seconds"] == 10.0
    assert totals["request_time_per_output_token_seconds"] == 2.0
    assert totals["request_num_preemptions"] == 3
    assert totals["request_prefill_kv_computed_tokens"] == 6 + 10


async def numbers(metrics: Metrics) -> dict[str, float]:
    page, _ = metrics.render("")
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


async def read(client: Any, prompt: Prompt, metrics: Metrics) -> None:
    async with open_answer(client, [prompt], 1, metrics) as answer:
        while not answer.finished:
            await answer.receive()


async def test_the_engine_s_own_clock_tells_the_phases(checkpoint: Path, autojump_clock: Any) -> None:
    async with open_client(checkpoint, dummy_step_seconds=0.5, max_num_seqs=1) as (client, _, _):
        metrics = Metrics(client, "m")
        async with trio.open_nursery() as nursery:
            for seed in (1, 2):
                prompt = Prompt([5, 6, 7], SamplingParams(max_tokens=5, seed=seed))
                nursery.start_soon(read, client, prompt, metrics)
        await trio.sleep(2)  # until a heartbeat has told of the steps
        found = await numbers(metrics)

    assert found["vllm:request_queue_time_seconds_sum"] == pytest.approx(
        2.5, abs=0.01
    )  # the second waited for five steps
    assert found["vllm:request_prefill_time_seconds_sum"] == pytest.approx(1.0, abs=0.01)
    assert found["vllm:request_decode_time_seconds_sum"] == pytest.approx(4.0, abs=0.01)
    assert found["vllm:iteration_tokens_total_count"] == found["trillm:engine_steps_total"] == 10
    assert found["vllm:iteration_tokens_total_sum"] == 2 * (3 + 4)


async def test_a_request_that_goes_on_after_a_death_is_one_request(checkpoint: Path, autojump_clock: Any) -> None:
    async with open_client(checkpoint, dummy_step_seconds=0.5) as (client, house, nursery):
        metrics = Metrics(client, "m")
        before: dict[str, float] = {}

        async def kill_later() -> None:
            await trio.sleep(2.75)
            before.update(await numbers(metrics))
            house.kill("engine-0")
            await wait_all_tasks_blocked()
            await trio.sleep(1)
            nursery.start_soon(house.run_engine)

        nursery.start_soon(kill_later)
        await read(client, Prompt([5, 6, 7], SamplingParams(max_tokens=12, seed=1)), metrics)
        found = await numbers(metrics)

    assert found["vllm:generation_tokens_total"] == 12
    assert found["vllm:prompt_tokens_total"] == 3
    assert found["vllm:request_prompt_tokens_count"] == found["vllm:time_to_first_token_seconds_count"] == 1
    assert found["vllm:request_queue_time_seconds_sum"] == pytest.approx(0, abs=0.01)
    assert found["vllm:request_prefill_time_seconds_sum"] == pytest.approx(0.5, abs=0.01)
    assert found["vllm:request_decode_time_seconds_sum"] > 0.5 * 11 + 1
    falling = [name for name in before if name.endswith(("_total", "_count", "_sum")) and found[name] < before[name]]
    assert [name for name in falling if not name.startswith(("python", "process"))] == []


async def test_http_requests_are_told_by_route_and_kind_of_status() -> None:
    found = await samples(await a_busy_app())

    assert found["http_requests_total", "/v1/completions", "POST", "2xx"] == 1
    assert found["http_requests_total", "/v1/chat/completions", "POST", "2xx"] == 1
    assert found["http_requests_total", "/v1/models/{name}", "GET", "2xx"] == 1
    assert found["http_requests_total", "none", "GET", "4xx"] == 1
    assert found["http_request_duration_highr_seconds_count",] == 4
    assert found["http_response_size_bytes_sum", "/v1/chat/completions"] > 100
    assert not any("/metrics" in key for key in found)


def test_no_client_makes_series_of_its_own() -> None:
    metrics = HttpMetrics()
    for index in range(100):
        metrics.observe("none", f"WORD{index}", 405, 0.1, 0, 0)
    requests = next(iter(metrics.collect()))

    assert [(sample.labels, sample.value) for sample in requests.samples] == [
        ({"handler": "none", "method": "OTHER", "status": "4xx"}, 100)
    ]


async def test_the_load_is_the_answers_that_are_being_given() -> None:
    under_test = make_app(api_keys=("secret",))
    under_test.engine.hold()
    assert (await under_test.get("/load")).json == {"server_load": 0}
    async with open_answer(under_test.engine, [], 1, under_test.services.metrics):
        assert (await under_test.get("/load")).json == {"server_load": 1}
    assert (await under_test.get("/load")).json == {"server_load": 0}
