"""What a start does, phase by phase: the seconds add up, and what is logged of it is little."""

from __future__ import annotations

from typing import Any

import attrs

from actors.handles import ActorState
from app.startup import CONNECT, Startup
from app.startup_metrics import StartupCollector
from protocol.ids import EngineIndex, Epoch
from protocol.phases import IMPORT, LAY_OUT, LOAD, START, WAIT


@attrs.define
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def an_actor(name: str, phase: str = START, **more: Any) -> ActorState:
    usual = ActorState(
        name=name,
        epoch=Epoch(1),
        pid=7,
        ready=False,
        phase=phase,
        phase_seconds=0.0,
        heartbeat_age=0.0,
        progress=0.0,
        restarts=0,
        last_end=None,
        engine_index=EngineIndex(int(name[-1])) if name.startswith("engine-") else None,
    )
    return attrs.evolve(usual, **more)


def rounded(startup: Startup) -> dict[str, float]:
    return {phase: round(seconds, 3) for phase, seconds in startup.seconds.items()}


def test_the_phases_of_this_process_and_of_the_engine_add_up_to_all_of_it() -> None:
    startup = Startup(clock := Clock())
    clock.now += 0.5
    startup.report("fetching some/model", 0, 100)
    clock.now += 2
    startup.report("fetching some/model", 50, 100)
    assert (startup.phase, startup.detail, startup.progress) == ("download", "some/model", 0.5)
    startup.report("reading model.gguf", 0, 0)
    clock.now += 1
    startup.enter(START)
    clock.now += 1
    startup.follow([an_actor("engine-0", pid=None), an_actor("output-0")])
    clock.now += 1
    startup.follow([an_actor("engine-0", IMPORT, phase_seconds=0.2, heartbeat_age=0.3), an_actor("output-0")])
    clock.now += 1
    startup.follow([an_actor("engine-0", LOAD, progress=0.4)])
    assert (startup.phase, startup.detail, startup.progress) == (LOAD, "engine-0", 0.4)
    clock.now += 4
    startup.follow([an_actor("engine-0", "idle", ready=True)])
    assert (startup.phase, startup.detail) == (CONNECT, "")
    startup.awaited = "--lora-modules"
    startup.follow([an_actor("engine-0", "idle", ready=True)])
    assert startup.detail == "--lora-modules"
    clock.now += 0.25
    startup.finish()
    clock.now += 60

    assert rounded(startup) == {START: 2.0, "download": 2.0, "convert": 1.0, IMPORT: 1.5, LOAD: 4.0, CONNECT: 0.25}
    assert startup.total == 10.75
    assert startup.summary() == "start 2.0, download 2.0, convert 1.0, import 1.5, load 4.0, connect 0.2"


def test_while_an_engine_waits_for_the_weights_what_their_actor_does_is_told() -> None:
    startup = Startup(Clock())
    waits, weights = an_actor("engine-0", WAIT), an_actor("weights-0", LAY_OUT, progress=0.3)
    startup.follow([waits, weights])
    assert (startup.phase, startup.detail, startup.progress) == (LAY_OUT, "weights-0", 0.3)
    startup.follow([waits, attrs.evolve(weights, ready=True)])
    assert startup.phase == WAIT


def test_of_several_engines_the_one_that_is_not_ready_is_told_of() -> None:
    startup = Startup(Clock())
    startup.follow([an_actor("engine-0", "idle", ready=True), an_actor("engine-1", LOAD)])
    assert (startup.phase, startup.detail) == (LOAD, "engine-1")


def test_a_phase_does_not_begin_before_the_one_that_was_told_before_it() -> None:
    startup = Startup(clock := Clock())
    clock.now += 1
    startup.enter("download")
    clock.now += 1
    startup.enter(START, seconds_ago=9)
    clock.now += 1
    startup.finish()

    assert rounded(startup) == {START: 3.0, "download": 0.0}
    assert startup.summary() == "start 3.0"


def test_nothing_is_logged_of_a_start_that_takes_no_time() -> None:
    startup = Startup(clock := Clock())
    for phase in (IMPORT, LOAD, CONNECT):
        clock.now += 0.9
        startup.enter(phase)
    startup.finish()
    assert startup.news() == []


def test_a_phase_is_at_most_two_lines_however_long_it_takes() -> None:
    startup = Startup(clock := Clock())
    startup.enter(IMPORT)
    lines = []
    for _ in range(300):
        clock.now += 1
        startup.follow([an_actor("engine-0", LOAD, phase_seconds=clock.now - 100, progress=0.5)])
        lines += startup.news()
    startup.finish()

    assert [*lines, *startup.news()] == ["load (engine-0): 10 s so far, 50%", "load took 300.0 s"]


def test_metrics_tell_each_phase_that_is_over() -> None:
    startup = Startup(clock := Clock())
    clock.now += 2
    startup.enter(LOAD)

    [family] = StartupCollector(startup, "m").collect()
    assert family.name == "trillm:startup_seconds"
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"model_name": "m", "phase": START}, 2.0),
    ]
