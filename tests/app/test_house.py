"""GET /house: the actors, what they say to each other, and what is counted, as the console reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs
import trio

from actors.handles import ActorState
from app.adapters import Adapter
from app.engine import Readiness
from app.house import HouseActor
from app.house_links import house_links
from app.incidents import Incidents
from app.metrics_page import read_page
from app.peers import CountedElsewhere
from protocol.engine_stats import EngineStats
from protocol.ids import EngineIndex, Epoch
from protocol.lora import LoraRequest
from protocol.operations import RunState
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.houses import actor


def an_actor(name: str, **fields: object) -> ActorState:
    state = ActorState(
        name=name,
        epoch=Epoch(1),
        pid=4711,
        ready=True,
        phase="serve",
        phase_seconds=4.0,
        heartbeat_age=0.25,
        progress=0.0,
        restarts=0,
        last_end=None,
    )
    return attrs.evolve(state, **fields)


def drawn(name: str, kind: str, engine_index: int | None = None) -> HouseActor:
    return actor(name, kind=kind, engine_index=engine_index)


async def test_it_tells_of_a_fresh_server() -> None:
    reply = await make_app().get("/house")
    assert reply.headers["Cache-Control"] == "no-store"
    told = reply.json
    assert (told["object"], told["version"], told["ready"], told["alive"]) == ("house", "1.2.3", True, True)
    assert told["now"] - told["started_at"] == 1000
    assert told["model"] == {
        "id": "owner/dummy",
        "names": ["owner/dummy", "alias"],
        "max_model_len": 256,
        "adapters": [],
        "tool_call_parser": None,
        "reasoning_parser": None,
    }
    assert told["requests"] == {"live": 0, "replayed": 0, "condemned": 0, "timeouts": 0}
    assert [actor["name"] for actor in told["actors"]] == ["app"]
    assert (told["links"], told["tool_servers"], told["max_logprobs"]) == ([], [], 20)


async def test_it_answers_while_the_engine_is_down_and_says_how_it_ended() -> None:
    under_test = make_app()
    down = an_actor("engine-0", pid=None, ready=False, phase="down", restarts=2, last_end="killed by SIGKILL")
    under_test.engine.states = [attrs.evolve(down, engine_index=EngineIndex(0)), an_actor("output-0")]
    under_test.engine.readiness = Readiness(False, "engine-0: down")
    under_test.engine.incidents = Incidents(Counter({"engine-0": 3}), replays=5, condemned=1, deadlines=2)
    under_test.engine.facts = None
    told = (await under_test.get("/house")).json
    assert (told["ready"], told["reason"]) == (False, "engine-0: down")
    engine = told["actors"][1]
    assert (engine["kind"], engine["engine_index"], engine["pid"]) == ("engine", 0, None)
    assert (engine["restarts"], engine["deaths"], engine["last_end"]) == (2, 3, "killed by SIGKILL")
    assert told["requests"] == {"live": 0, "replayed": 5, "condemned": 1, "timeouts": 2}
    assert told["model"]["max_model_len"] == 0


async def test_a_phase_is_as_old_as_it_is_now_and_not_as_it_was_told() -> None:
    under_test = make_app()
    under_test.engine.states = [an_actor("output-0", phase_seconds=4.0, heartbeat_age=1.5)]
    actor = (await under_test.get("/house")).json["actors"][1]
    assert (actor["phase_seconds"], actor["heartbeat_age"]) == (5.5, 1.5)


async def test_engines_tell_what_they_do_and_how_they_are_held() -> None:
    under_test = make_app()
    under_test.engine.stats = EngineStats(3, 2, 16, 64, 5, 70, 100, 40, prefix_cache_queries=90, prefix_cache_hits=60)
    under_test.engine.run_state = RunState(is_paused=True)
    told = (await under_test.get("/house")).json
    [engine] = told["engines"]
    assert (engine["running"], engine["waiting"], engine["kv_blocks_used"], engine["kv_blocks_total"]) == (3, 2, 16, 64)
    assert (engine["preemptions"], engine["steps"], engine["prompt_tokens"], engine["generation_tokens"]) == (
        5,
        70,
        100,
        40,
    )
    assert (engine["prefix_cache_queries"], engine["prefix_cache_hits"]) == (90, 60)
    assert told["run_state"] == {"is_paused": True, "is_sleeping": False, "sleep_level": 0}


async def test_latencies_are_counted_bucket_by_bucket() -> None:
    under_test = make_app()
    await under_test.complete(max_tokens=5)
    latency = (await under_test.get("/house")).json["latency"]
    for name, number in (("ttft", 1), ("itl", 4), ("e2e", 1)):
        histogram = latency[name]
        assert len(histogram["counts"]) == len(histogram["bounds"]) + 1
        assert histogram["bounds"] == sorted(histogram["bounds"])
        assert sum(histogram["counts"]) == number, name


async def test_several_who_look_at_once_share_a_reading(autojump_clock: trio.testing.MockClock) -> None:
    under_test = make_app()
    first = (await under_test.get("/house")).json
    under_test.engine.stats = EngineStats(9)
    assert (await under_test.get("/house")).json == first
    await trio.sleep(0.3)
    assert (await under_test.get("/house")).json["engines"][0]["running"] == 9


class Others:
    """One more API server, which counts like the one it was made with."""

    def __init__(self) -> None:
        self.told: list[CountedElsewhere] = []
        self.is_silent = False

    async def pages(self) -> Sequence[CountedElsewhere]:
        if self.is_silent:
            await trio.sleep_forever()
        return self.told

    async def adapter_came(self, adapter: Adapter) -> None:
        raise AssertionError("nobody loads adapters here")

    async def adapter_went(self, name: str) -> None:
        raise AssertionError("nobody unloads adapters here")


async def several(others: Others) -> AppUnderTest:
    other = make_app()
    await other.complete(max_tokens=3)
    other.engine.num_requests = 2
    others.told = [CountedElsewhere(read_page(other.services.metrics.page()), True)]
    under_test = make_app(peers=others)
    under_test.engine.states = [an_actor("engine-0", engine_index=EngineIndex(0)), an_actor("api-0")]
    await under_test.complete(max_tokens=3)
    return under_test


async def test_of_several_api_servers_it_tells_what_all_count_and_who_owns_them() -> None:
    told = (await (await several(Others())).get("/house")).json
    assert sum(told["latency"]["ttft"]["counts"]) == 2
    assert told["requests"]["live"] == 2
    assert told["actors"][0]["name"] == "app"


async def test_a_server_that_others_do_not_answer_tells_what_they_said_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    others = Others()
    under_test = await several(others)
    await under_test.get("/house")
    others.is_silent = True
    await trio.sleep(1)
    with trio.fail_after(5):
        told = (await under_test.get("/house")).json
    assert sum(told["latency"]["ttft"]["counts"]) == 2


async def test_a_server_that_cannot_ask_others_any_more_tells_what_they_said_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    others = Others()
    under_test = await several(others)
    await under_test.get("/house")
    others.told = []
    await trio.sleep(1)
    assert sum((await under_test.get("/house")).json["latency"]["ttft"]["counts"]) == 2


async def test_adapters_are_named() -> None:
    adapter = Adapter(LoraRequest("poet", 1, "/a"), 1)
    assert (await make_app(adapters=[adapter]).get("/house")).json["model"]["adapters"] == ["poet"]


def test_links_are_a_request_s_way_and_what_engines_have_beside_them() -> None:
    actors = [
        drawn("app", "app"),
        drawn("engine-0", "engine", 0),
        drawn("rank-0.1", "rank", 0),
        drawn("engine-1", "engine", 1),
        drawn("kv-1", "kv", 1),
        drawn("output-0", "output"),
        drawn("weights-0", "weights"),
        drawn("standby-0", "standby"),
    ]
    found = {(link.sender, link.receiver): (link.sends, link.socket) for link in house_links(actors)}
    assert found == {
        ("app", "engine-0"): ("EngineCoreRequest", "PUSH/PULL"),
        ("app", "engine-1"): ("EngineCoreRequest", "PUSH/PULL"),
        ("engine-0", "output-0"): ("EngineCoreOutputs", "XPUB/SUB"),
        ("engine-1", "output-0"): ("EngineCoreOutputs", "XPUB/SUB"),
        ("output-0", "app"): ("RequestOutputs", "PUSH/PULL"),
        ("weights-0", "engine-0"): ("weights", "shared memory"),
        ("weights-0", "engine-1"): ("weights", "shared memory"),
        ("engine-0", "rank-0.1"): ("StepPlan", "process group"),
        ("engine-1", "kv-1"): ("KvFind, KvSaved", "PUSH/PULL"),
        ("kv-1", "engine-1"): ("KvFound, KvRoom", "PUSH/PULL"),
    }


def test_each_api_server_has_an_output_handler_of_its_own() -> None:
    names = [("app", "app"), ("api-0", "api"), ("api-1", "api"), ("output-0", "output"), ("output-1", "output")]
    actors = [drawn("engine-0", "engine", 0), *(drawn(*name) for name in names)]
    found = [(link.sender, link.receiver) for link in house_links(actors)]
    assert ("output-1", "api-1") in found
    assert ("output-1", "api-0") not in found
    assert ("api-1", "engine-0") in found
    assert ("app", "api-1") in found
    assert ("app", "engine-0") not in found
