"""Probes, metrics, and the token routes."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.handles import ActorState
from app.engine import Readiness
from app.incidents import Incidents
from app.late_actors import describe, late_engines, what_is_late
from protocol.engine_stats import EngineStats
from protocol.ids import EngineIndex, Epoch
from tests.helpers.app_under_test import AppUnderTest, make_app


async def samples(under_test: AppUnderTest) -> dict[str, float]:
    text = (await under_test.get("/metrics")).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason") or sample.labels.get("le")
            found[sample.name + (f":{reason}" if reason else "")] = sample.value
    return found


async def test_alive_and_ready_are_different_questions() -> None:
    under_test = make_app()
    assert (await under_test.get("/health")).status_code == 200
    assert (await under_test.get("/ready")).status_code == 200
    assert (await under_test.send("POST", "/ping", b"")).status_code == 200
    under_test.engine.readiness = Readiness(False, "engine 0 is loading weights (40 %)")
    assert (await under_test.get("/health")).status_code == 200
    reply = await under_test.get("/ready")
    assert reply.status_code == 503
    assert "engine 0 is loading weights" in reply.json["error"]["message"]
    under_test.engine.alive = False
    assert (await under_test.get("/health")).status_code == 503
    assert (await under_test.get("/ping")).status_code == 503
    assert (await under_test.get("/ready")).status_code == 503


async def test_the_version_is_told() -> None:
    assert (await make_app().get("/version")).json == {"version": "1.2.3"}


async def test_counters_grow_by_what_requests_used() -> None:
    under_test = make_app()
    usage = (await under_test.complete(["a", "The sky is"], max_tokens=7)).json["usage"]
    await under_test.complete(stop="water", max_tokens=50)
    found = await samples(under_test)
    assert found["vllm:generation_tokens_total"] == usage["completion_tokens"] + 3
    assert found["vllm:request_success_total:length"] == 2
    assert found["vllm:request_success_total:stop"] == 1
    assert found["vllm:request_success_total:abort"] == 0
    assert found["vllm:time_to_first_token_seconds_count"] == 3
    assert found["vllm:inter_token_latency_seconds_count"] == found["vllm:generation_tokens_total"] - 3
    assert found["vllm:e2e_request_latency_seconds_count"] == 3


async def test_gauges_come_from_the_engines_latest_statistics_and_are_never_negative() -> None:
    under_test = make_app()
    under_test.engine.stats = EngineStats(
        3, 2, 16, 64, 5, prefix_cache_queries=70, prefix_cache_hits=60, spec_decode_num_accepted_tokens=9
    )
    found = await samples(under_test)
    assert found["vllm:num_requests_running"] == 3
    assert found["vllm:num_requests_waiting"] == 2
    assert found["vllm:kv_cache_usage_perc"] == 0.25
    assert found["vllm:num_preemptions_total"] == 5
    assert found["vllm:prefix_cache_queries_total"] == 70
    assert found["vllm:prefix_cache_hits_total"] == 60
    assert found["vllm:spec_decode_num_accepted_tokens_total"] == 9
    under_test.engine.stats = EngineStats(-1, -2, -3, 0)
    assert all(value >= 0 for value in (await samples(under_test)).values())


@pytest.mark.parametrize("text", ["The sky is", "naïve 😀", "<|im_end|>"])
async def test_text_survives_tokenising_and_back(text: str) -> None:
    under_test = make_app()
    tokenized = (await under_test.post("/tokenize", prompt=text)).json
    assert tokenized["count"] == len(tokenized["tokens"])
    assert tokenized["max_model_len"] == 256
    assert tokenized["token_strs"] is None
    assert (await under_test.post("/detokenize", tokens=tokenized["tokens"])).json == {"prompt": text}


async def test_messages_are_tokenised_as_the_chat_route_does() -> None:
    under_test = make_app()
    messages = [{"role": "user", "content": "Hi <|im_end|>"}]
    tokenized = (await under_test.post("/tokenize", messages=messages, return_token_strs=True)).json
    await under_test.chat(messages=messages, max_tokens=1)
    assert tokenized["tokens"] == under_test.engine.prompts[0].prompt_token_ids
    assert tokenized["token_strs"][0] == "<|im_start|>"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": []}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"prompt": 5}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [512]}),
        ("/detokenize", {"tokens": [2**70]}),
        ("/detokenize", {"tokens": "abc"}),
    ],
)
async def test_wrong_token_requests_are_refused(path: str, body: dict[str, object]) -> None:
    assert (await make_app().post(path, **body)).status_code == 400


def an_actor(name: str, **fields: object) -> ActorState:
    state = ActorState(
        name=name,
        epoch=Epoch(1),
        pid=4711,
        ready=True,
        phase="serve",
        phase_seconds=4.0,
        heartbeat_age=0.25,
        progress=1.0,
        restarts=0,
        last_end=None,
    )
    return attrs.evolve(state, **fields)


async def labelled(under_test: AppUnderTest) -> dict[tuple[str, ...], float]:
    """Samples of the house's own metrics by name and labels."""
    text = (await under_test.get("/metrics")).text
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "model_name")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("trillm_")
    }


async def test_ready_tells_how_each_actor_is_and_nothing_that_is_not_everybody_s() -> None:
    under_test = make_app()
    under_test.engine.states = [an_actor("engine-0", phase="step", restarts=2, last_end="killed by SIGKILL")]
    told = (await under_test.get("/ready")).json
    engine = {"name": "engine-0", "ready": True, "phase": "step", "heartbeat_age": 0.2, "restarts": 2}

    assert told == {"ready": True, "actors": [engine]}


async def test_engines_that_do_not_serve_are_named_though_others_do() -> None:
    under_test = make_app()
    assert (await under_test.get("/health")).text == ""
    under_test.engine.readiness = Readiness(True, late="engine-1: load (40%)")
    assert (await under_test.get("/ready")).json == {"ready": True, "late": "engine-1: load (40%)", "actors": []}
    health = await under_test.get("/health")
    assert (health.status_code, health.text) == (200, "engine-1: load (40%)")


def test_one_engine_that_serves_is_enough_but_others_are_not_done_without() -> None:
    one, other = an_actor("engine-0", engine_index=EngineIndex(0)), an_actor("engine-1", engine_index=EngineIndex(1))
    late = attrs.evolve(other, ready=False, phase="load", progress=0.4)
    output = an_actor("output-0", ready=False, phase="down")

    assert what_is_late([one, late]) is None
    assert late_engines([one, late]) == "engine-1: load (40%)"
    assert what_is_late([one, late, output]) == "output-0: down"
    assert what_is_late([attrs.evolve(one, heartbeat_age=6.0), late]) == (
        "engine-0 has not been heard of for 6 s; engine-1: load (40%)"
    )


async def test_metrics_tell_of_each_actor_and_of_what_went_wrong() -> None:
    under_test = make_app()
    late = an_actor("engine-0", ready=False, phase="load", restarts=3, heartbeat_age=2.0)
    under_test.engine.states = [late, an_actor("output-0")]
    under_test.engine.incidents = Incidents(Counter({"engine-0": 4}), 7, 2, 1, 5, 6)
    found = await labelled(under_test)

    assert found["trillm_actor_up", "engine-0"] == 0
    assert found["trillm_actor_up", "output-0"] == 1
    assert found["trillm_actor_restarts_total", "engine-0"] == 3
    assert found["trillm_actor_deaths_total", "engine-0"] == 4
    assert found["trillm_actor_deaths_total", "output-0"] == 0
    assert found["trillm_actor_heartbeat_age_seconds", "engine-0"] == 2
    assert found["trillm_actor_phase_seconds", "engine-0", "load"] == 6
    assert found["trillm_requests_replayed_total",] == 7
    assert found["trillm_requests_quarantined_total",] == 2
    assert found["trillm_requests_condemned_total",] == 1
    assert found["trillm_request_timeouts_total", "deadline"] == 5
    assert found["trillm_request_timeouts_total", "queue"] == 6


def test_a_late_actor_is_named_with_its_restarts_and_its_last_end() -> None:
    loading = an_actor("engine-0", ready=False, phase="load", progress=0.4, restarts=3, last_end="killed by SIGKILL")

    assert describe(loading) == "engine-0: load (40%), restarted 3 times; before that it was killed by SIGKILL"
    assert describe(an_actor("output-0", heartbeat_age=7.2, restarts=1)) == (
        "output-0 has not been heard of for 7 s, restarted once"
    )
