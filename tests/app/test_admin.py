"""The operator's routes: what they tell the engines, what they refuse, and who may use them."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from attrs import frozen

from app.operations import OPERATIONS
from protocol.errors import ConflictError, DeadlineError, UnavailableError
from protocol.operations import (
    AbortAll,
    AllAborted,
    CacheReset,
    GetState,
    Pause,
    PauseMode,
    ProfileState,
    ResetPrefixCache,
    Resume,
    RunState,
    Sleep,
    SleepTag,
    StartProfile,
    StopProfile,
    UtilityOperation,
    WakeUp,
)
from tests.helpers.app_under_test import AppUnderTest, Reply, make_app
from tests.helpers.asgi import Exchange, http_scope

ABORT, WAIT, KEEP = PauseMode.ABORT, PauseMode.WAIT, PauseMode.KEEP
PATHS = (
    *("/start_profile", "/stop_profile", "/sleep", "/wake_up", "/is_sleeping", "/reset_prefix_cache", "/pause"),
    *("/resume", "/is_paused", "/abort_requests"),
)


async def send(under_test: AppUnderTest, method: str, target: str, *headers: tuple[bytes, bytes]) -> Reply:
    path, _, query = target.partition("?")
    exchange = Exchange(http_scope(method, path, headers) | {"query_string": query.encode()})
    await exchange.run(under_test.app)
    return Reply(exchange)


@frozen
class Call:
    """A request and what the engines hear of it."""

    path: str
    query: str
    operation: UtilityOperation


CALLS = [
    Call("/start_profile", "", StartProfile()),
    Call("/stop_profile", "", StopProfile()),
    Call("/sleep", "", Sleep(1, ABORT)),
    Call("/sleep", "level=2&mode=keep", Sleep(2, KEEP)),
    Call("/sleep", "level=0&mode=wait&unknown=1", Sleep(0, WAIT)),
    Call("/wake_up", "", WakeUp([])),
    Call("/wake_up", "tags=weights&tags=kv_cache", WakeUp([SleepTag.WEIGHTS, SleepTag.KV_CACHE])),
    Call("/wake_up", "tags=weights,scheduling", WakeUp([SleepTag.WEIGHTS, SleepTag.SCHEDULING])),
    Call("/reset_prefix_cache", "", ResetPrefixCache(False)),
    Call("/reset_prefix_cache", "reset_running_requests=True", ResetPrefixCache(True)),
    Call("/reset_prefix_cache", "reset_external=true", ResetPrefixCache(False, True)),
    Call("/pause", "", Pause(ABORT, True)),
    Call("/pause", "mode=keep&clear_cache=false", Pause(KEEP, False)),
    Call("/resume", "", Resume()),
    Call("/abort_requests", "", AbortAll()),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.path}?{call.query}")
async def test_a_route_tells_the_engines_its_operation(call: Call) -> None:
    under_test = make_app()
    under_test.engine.results = {StartProfile: ProfileState("/p"), StopProfile: ProfileState("/p", 7, True)}
    reply = await send(under_test, "POST", f"{call.path}?{call.query}")
    assert reply.status_code == 200
    assert under_test.engine.operations == [call.operation]


async def test_answers_say_how_things_stand() -> None:
    under_test = make_app()
    engine = under_test.engine
    engine.results = {StopProfile: ProfileState("/p", 7, True), ResetPrefixCache: CacheReset(False)}
    profiles = (await under_test.post("/stop_profile")).json["profiles"]
    assert profiles == [{"path": "/p", "num_steps": 7, "is_cut_off": True}]
    assert (await under_test.post("/reset_prefix_cache")).json == {"success": False}
    assert (await under_test.get("/is_sleeping")).json == {"is_sleeping": False}
    assert (await under_test.post("/resume")).json["status"] == "resumed"
    engine.run_state = RunState(True)
    assert (await under_test.get("/is_paused")).json == {"is_paused": True}
    assert (await under_test.post("/pause")).json["status"] == "paused"
    engine.run_state = RunState(True, 1, [SleepTag.KV_CACHE])
    assert (await under_test.get("/is_sleeping")).json == {"is_sleeping": True}
    assert (await under_test.post("/sleep")).json == {
        "status": "sleeping",
        "is_paused": True,
        "is_sleeping": True,
        "sleep_level": 1,
        "asleep": ["kv_cache"],
    }


@pytest.mark.parametrize(
    ("path", "param", "told"),
    [
        ("/sleep?level=3", "level", "0, 1, 2"),
        ("/sleep?level=-1", "level", "'-1'"),
        ("/sleep?level=", "level", "''"),
        ("/sleep?mode=now", "mode", "abort, wait, keep"),
        ("/pause?mode=", "mode", "abort, wait, keep"),
        ("/pause?clear_cache=perhaps", "clear_cache", "'perhaps'"),
        ("/wake_up?tags=weights&tags=all", "tags", "weights, kv_cache, scheduling"),
        ("/reset_prefix_cache?reset_running_requests=2", "reset_running_requests", "'2'"),
    ],
)
async def test_a_wrong_value_is_refused_by_its_name(path: str, param: str, told: str) -> None:
    under_test = make_app()
    reply = await send(under_test, "POST", path)
    assert reply.status_code == 400
    assert reply.json["error"]["param"] == param
    assert told in reply.json["error"]["message"]
    assert under_test.engine.operations == []


@pytest.mark.parametrize(
    ("error", "status"),
    [(ConflictError("no profile"), 409), (DeadlineError("not within 10 s"), 504), (UnavailableError("loading"), 503)],
)
async def test_what_the_engines_say_is_wrong_is_told(error: Exception, status: int) -> None:
    under_test = make_app()
    under_test.engine.results = {StopProfile: error}
    reply = await under_test.post("/stop_profile")
    assert reply.status_code == status
    assert reply.json["error"]["message"] == str(error)


async def test_ending_some_requests_is_refused_rather_than_ending_all() -> None:
    under_test = make_app()
    for body in (b'{"request_ids": ["a"]}', b'{"request_ids": 1}', b"what"):
        reply = await under_test.send("POST", "/abort_requests", body)
        assert reply.status_code in (400, 501)
    assert under_test.engine.operations == []
    for body in (b"", b"{}", b'{"request_ids": []}', b'{"request_ids": null}'):
        assert (await under_test.send("POST", "/abort_requests", body)).status_code == 200
    assert under_test.engine.operations == [AbortAll()] * 4


async def test_ending_all_requests_is_answered_with_how_many_there_were() -> None:
    under_test = make_app()
    under_test.engine.results = {AbortAll: AllAborted(7, RunState(True))}
    assert (await under_test.send("POST", "/abort_requests", b"")).json == {
        "status": "paused",
        "is_paused": True,
        "is_sleeping": False,
        "sleep_level": None,
        "asleep": [],
        "num_aborted": 7,
    }


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", PATHS)
async def test_without_the_key_no_method_reaches_an_engine(path: str, method: str) -> None:
    under_test = make_app(api_keys=("sesame",))
    reply = await under_test.send(method, path, b"")
    assert reply.status_code == (200 if method == "OPTIONS" else 401)
    assert under_test.engine.operations == []
    allowed = await under_test.send("GET" if "/is_" in path else "POST", path, b"", authorization="Bearer sesame")
    assert allowed.status_code == 200


async def test_a_question_answers_to_head_as_to_get_and_an_order_to_neither() -> None:
    under_test = make_app()
    assert (await under_test.send("HEAD", "/is_sleeping", b"")).status_code == 200
    assert under_test.engine.operations == [GetState()]
    for method in ("GET", "HEAD"):
        assert (await under_test.send(method, "/sleep", b"")).status_code == 405
    assert under_test.engine.operations == [GetState()]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://evil.example", 403),
        ("null", 403),
        ("http://localhost:1", 403),
        ("http://[", 403),
        ("http://localhost", 200),
    ],
)
async def test_a_web_page_of_another_origin_operates_nothing(origin: str, status: int) -> None:
    under_test = make_app()
    reply = await send(under_test, "POST", "/sleep", (b"host", b"localhost"), (b"origin", origin.encode()))
    assert reply.status_code == status
    assert len(under_test.engine.operations) == (status == 200)


def test_the_routes_named_here_are_all() -> None:
    described = {operation.path for operation in OPERATIONS if HTTPStatus.CONFLICT in operation.errors}
    assert described - {"/v1/load_lora_adapter"} == set(PATHS), "and that one is no operator's"


@pytest.mark.parametrize(("level", "states"), [(None, [1, 0, 0]), (0, [0, 0, 0]), (1, [0, 1, 0]), (2, [0, 0, 1])])
async def test_metrics_tell_how_deep_it_sleeps(level: int | None, states: list[int]) -> None:
    under_test = make_app(run_state=RunState(False, level))
    text = (await under_test.get("/metrics")).text
    found = [line for line in text.splitlines() if line.startswith("vllm:engine_sleep_state{")]
    names = ["awake", "weights_offloaded", "discard_all"]
    for line, name, state in zip(found, names, states, strict=True):
        assert f'sleep_state="{name}"' in line
        assert float(line.split()[-1]) == state
