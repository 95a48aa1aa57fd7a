"""What an operator does to the engines: pausing, sleeping, profiling. vLLM's routes; all of them need a key when keys
are set (app/auth.py).

Without keys whoever sits at this machine is the operator, but no web page that is open there: these routes take no
JSON, which a browser would ask permission for, so that pages of other origins are turned away here.
"""

from __future__ import annotations

import enum
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from quart import Blueprint, Response, request

from app.body import decode_body
from app.engine_calls import combined
from app.schemas.admin import (
    AbortAnswer,
    AbortRequestsBody,
    IsPausedAnswer,
    IsSleepingAnswer,
    Profile,
    ProfilesAnswer,
    ResetAnswer,
    RunStateAnswer,
)
from app.services import Services
from protocol.errors import BadRequestError, NotImplementedHereError, NotLocalError
from protocol.operations import (
    AbortAll,
    AllAborted,
    CacheReset,
    EngineState,
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

LEVELS = ("0", "1", "2")
BOOLS = {"true": True, "1": True, "false": False, "0": False}
E = TypeVar("E", bound=enum.StrEnum)
_ABORT = msgspec.json.Decoder(AbortRequestsBody)


def admin_routes(services: Services) -> Blueprint:
    routes = Blueprint("admin", __name__)
    if not services.api_keys:
        routes.before_request(refuse_other_pages)

    async def run_state(operation: UtilityOperation) -> RunState:
        """What the engines are after it."""
        found = []
        for result in await services.engine.operate(operation):
            if isinstance(result, EngineState):
                found.append(result.run_state or RunState())
            elif isinstance(result, RunState):
                found.append(result)
        return combined(found)

    async def profiles(operation: UtilityOperation) -> Response:
        results = await services.engine.operate(operation)
        states = [result for result in results if isinstance(result, ProfileState)]
        return _answer(ProfilesAnswer([Profile(s.path, s.num_steps, s.is_cut_off) for s in states]))

    @routes.post("/start_profile")
    async def start_profile() -> Response:
        return await profiles(StartProfile())

    @routes.post("/stop_profile")
    async def stop_profile() -> Response:
        return await profiles(StopProfile())

    @routes.post("/sleep")
    async def sleep() -> Response:
        level = request.args.get("level", "1")
        if level not in LEVELS:
            raise BadRequestError(f"level must be one of {', '.join(LEVELS)}, not {level[:100]!r}", param="level")
        return _run_state(await run_state(Sleep(int(level), _mode())))

    @routes.post("/wake_up")
    async def wake_up() -> Response:
        tags = [_choice(SleepTag, "tags", tag) for tags in request.args.getlist("tags") for tag in tags.split(",")]
        return _run_state(await run_state(WakeUp(tags)))

    @routes.get("/is_sleeping")
    async def is_sleeping() -> Response:
        return _answer(IsSleepingAnswer((await run_state(GetState())).is_sleeping))

    @routes.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        preempts, external = _flag("reset_running_requests", default=False), _flag("reset_external", default=False)
        results = await services.engine.operate(ResetPrefixCache(preempts, external))
        return _answer(ResetAnswer(all(isinstance(result, CacheReset) and result.success for result in results)))

    @routes.post("/pause")
    async def pause() -> Response:
        return _run_state(await run_state(Pause(_mode(), _flag("clear_cache", default=True))))

    @routes.post("/resume")
    async def resume() -> Response:
        return _run_state(await run_state(Resume()), "resumed")

    @routes.get("/is_paused")
    async def is_paused() -> Response:
        return _answer(IsPausedAnswer((await run_state(GetState())).is_paused))

    @routes.post("/abort_requests")
    async def abort_requests() -> Response:
        get_data = partial(request.get_data, cache=False, as_text=False, parse_form_data=False)
        data = await services.drain.unless_begun(get_data)
        if data and decode_body(data, _ABORT, services.limits.max_json_depth).request_ids:
            raise NotImplementedHereError(
                "request_ids: only all requests can be ended here; leave it out for that. A single request ends when "
                "its client closes the connection",
                param="request_ids",
            )
        results = await services.engine.operate(AbortAll())
        aborted = [result for result in results if isinstance(result, AllAborted)]
        num_aborted = sum(one.num_requests for one in aborted)
        answer = _run_state_answer(combined(one.run_state for one in aborted))
        return _answer(AbortAnswer(**msgspec.structs.asdict(answer), num_aborted=num_aborted))

    return routes


async def refuse_other_pages() -> None:
    """Raises NotLocalError for what a browser sends on behalf of a page that is not from here."""
    origin = request.headers.get("Origin")
    if origin is not None and not is_here(origin, request.host):
        raise NotLocalError(f"Web pages of other origins may not operate this server: {origin[:100]}")


def is_here(origin: str, host: str) -> bool:
    """Whether a page of this origin is one of ours."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:  # no URL at all
        return False


def _mode() -> PauseMode:
    return _choice(PauseMode, "mode", request.args.get("mode", PauseMode.ABORT.value))


def _choice(kind: type[E], name: str, value: str) -> E:
    if value not in {each.value for each in kind}:
        raise BadRequestError(f"{name} must be one of {', '.join(kind)}, not {value[:100]!r}", param=name)
    return kind(value)


def _flag(name: str, *, default: bool) -> bool:
    value = request.args.get(name)
    if value is None:
        return default
    if value.lower() not in BOOLS:
        raise BadRequestError(f"{name} must be true or false, not {value[:100]!r}", param=name)
    return BOOLS[value.lower()]


def _run_state(state: RunState, status: str | None = None) -> Response:
    return _answer(_run_state_answer(state, status))


def _run_state_answer(state: RunState, status: str | None = None) -> RunStateAnswer:
    held = "sleeping" if state.is_sleeping else "paused" if state.is_paused else "running"
    asleep = [str(tag) for tag in state.asleep]
    return RunStateAnswer(status or held, state.is_paused, state.is_sleeping, state.sleep_level, asleep)


def _answer(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), content_type="application/json")
