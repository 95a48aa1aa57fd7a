"""A request that is cancelled, or whose client leaves, at any of its steps leaves nothing behind: each one is tried.

Over the real actors' mains in virtual time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from quart_trio import QuartTrio
from trio.testing import wait_all_tasks_blocked

from app.engine_client import ActorEngineClient
from app.factory import create_app
from app.metrics import Metrics
from app.model_card import ModelCard
from app.render import ChatTemplate
from app.respond import MANY_CHOICES
from app.services import Services
from protocol.ids import EngineIndex
from tests.helpers.app_under_test import MODEL, make_tokenizer
from tests.helpers.asgi import Exchange, http_scope
from tests.helpers.clients import open_client
from tests.helpers.dummy_checkpoint import CHAT_TEMPLATE

MESSAGES = [{"role": "user", "content": "Hi"}]
CHOICES = {"structured_outputs": {"choice": ["yes", "no"]}}
MOST_STEPS = 400
"""A request that has more never ends."""


class InterruptAt(trio.abc.Instrument):
    """Interrupts when one task, or one that it has started, takes its k-th step.

    Just before the step: what the task waited for has come, and the interruption meets it at its next checkpoint. Just
    after: it meets the task where it now waits.
    """

    def __init__(self, step: int, after: bool, interrupt: Callable[[], None]) -> None:
        self._left = step
        self._after = after
        self._interrupt = interrupt
        self._tasks: set[trio.lowlevel.Task] = set()
        self.reached = False

    def watch(self, task: trio.lowlevel.Task) -> None:
        self._tasks.add(task)

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        if task.parent_nursery and task.parent_nursery.parent_task in self._tasks:
            self._tasks.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self._after:
            self._count(task)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._after:
            self._count(task)

    def _count(self, task: trio.lowlevel.Task) -> None:
        if task in self._tasks and not self.reached:
            self._left -= 1
            if self._left < 0:
                self.reached = True
                self._interrupt()


def make_app(client: ActorEngineClient) -> QuartTrio:
    tokenizer = make_tokenizer()
    model = ModelCard((MODEL,), 1_700_000_000, (2,))
    return create_app(
        Services(client, tokenizer, ChatTemplate(CHAT_TEMPLATE), model, Metrics(client, MODEL), seed=lambda: 42)
    )


async def interrupted_at(step: int, how: str, app: QuartTrio, path: str, body: dict[str, Any]) -> bool:
    """Whether the request has so many steps. One that has fewer is answered."""
    exchange = Exchange(http_scope("POST", path, [(b"content-type", b"application/json")]), json.dumps(body).encode())
    scope = trio.CancelScope()
    interrupt = exchange.disconnected.set if how == "the client leaves" else scope.cancel
    instrument = InterruptAt(step, how == "cancelled where it waits", interrupt)
    instrument.watch(trio.lowlevel.current_task())
    trio.lowlevel.add_instrument(instrument)
    try:
        with scope:
            await exchange.run(app)
    finally:
        trio.lowlevel.remove_instrument(instrument)
    if not instrument.reached:
        assert exchange.status == 200, exchange.data
    return instrument.reached


def num_tasks() -> int:
    def below(task: trio.lowlevel.Task) -> int:
        return 1 + sum(below(child) for nursery in task.child_nurseries for child in nursery.child_tasks)

    root = trio.lowlevel.current_root_task()
    assert root is not None
    return below(root)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/completions", {"prompt": "Hi", "n": 2}),
        ("/v1/completions", {"prompt": ["a", "b"], **CHOICES}),
        ("/v1/completions", {"prompt": ["a"] * (MANY_CHOICES + 1), "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/chat/completions", {"messages": MESSAGES, "n": 2, **CHOICES}),
    ],
    ids=["completion", "n2", "two prompts and a grammar", "many prompts", "chat", "chat n2 and a grammar"],
)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("how", ["cancelled after what it waited for", "cancelled where it waits", "the client leaves"])
async def test_at_whatever_step_a_request_is_interrupted_it_leaves_nothing_behind(
    checkpoint: Path, autojump_clock: trio.testing.MockClock, path: str, more: dict[str, Any], stream: bool, how: str
) -> None:
    body = {"max_tokens": 6, "temperature": 0, "stream": stream, **more}
    async with open_client(checkpoint, dummy_step_seconds=0.1) as (client, _, _):
        app = make_app(client)
        await interrupted_at(MOST_STEPS, how, app, path, body)  # what is done once is done
        await wait_all_tasks_blocked()
        before = num_tasks()
        step = 0
        while await interrupted_at(step, how, app, path, body):
            await wait_all_tasks_blocked()
            assert (client.live(), num_tasks()) == ([], before), step
            state = await client.engine_state(EngineIndex(0))
            assert (state.request_ids, state.stats.kv_blocks_used) == ([], 0), step
            step += 1
            assert step < MOST_STEPS
        assert step > 8
