"""What counts as silent for too long: what was injected meanwhile is an excuse, and nothing else is."""

from __future__ import annotations

import pytest

from scripts.chaos_run.client import Outcome
from scripts.chaos_run.injector import Injected
from scripts.chaos_run.plan import KINDS, Injection
from scripts.chaos_run.run import too_silent

BY_NAME = {kind.name: kind for kind in KINDS}


def silent(start: float, end: float) -> list[Outcome]:
    return [Outcome("greedy, streamed", "reads", 0.0, 200.0, [(start, end)])]


def injected(name: str, at: float, seconds: float = 0.0) -> Injected:
    return Injected(Injection(at, BY_NAME[name], seconds), at, at + seconds, ["engine-0"])


@pytest.mark.parametrize(
    ("end", "done", "is_too_long"),
    [
        (103.0, [], False),
        (108.0, [], True),
        (108.0, [injected("kill -9 of the engine", 100.5)], False),
        (108.0, [injected("kill -9 of the engine", 60.0)], True),
        (108.0, [injected("garbage to every socket", 100.5)], True),
        (112.0, [injected("kill -9 of the engine", 100.5)], True),
        (115.0, [injected("kill -9 of the engine, and of the next while it starts", 100.5)], False),
        (116.0, [injected("SIGSTOP of the engine", 100.5, 7.0)], True),
        (111.5, [injected("SIGSTOP of the engine", 100.5, 7.0)], False),
        (122.0, [injected("SIGSTOP of the engine", 100.5, 50.0)], False),
    ],
)
def test_a_silence_is_excused_by_what_was_injected_meanwhile(end, done, is_too_long):
    complaints = too_silent(silent(100.0, end), done, patience=5.0, restart_seconds=6.0)

    assert bool(complaints) == is_too_long
