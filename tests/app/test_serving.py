"""From engines that are up to a service that takes requests: what is said to whom, and when."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from app.checkpoints.inspect import describe
from app.checkpoints.resolve import Checkpoint, Source
from app.engine import Readiness
from app.launch import engine_client
from app.notify import ServiceReport, open_notifier
from app.service import Service
from app.serving import announce, binary_size, what_is_served_in_short
from app.settings import Settings
from app.start_screen import Start
from protocol.errors import UnavailableError
from protocol.messages import UtilityReply
from tests.app.test_adapters_in_engines import a_prompt
from tests.helpers.adapters import write_adapter
from tests.helpers.asgi import Exchange, http_scope
from tests.helpers.clients import collect
from tests.helpers.memory_house import MemoryHouse, open_memory_house

BEING_READ = "the adapters of --lora-modules are being read"


class HeldReplies:
    """What engines say of operations, until it is let through."""

    def __init__(self, house: MemoryHouse) -> None:
        self.held: list[Callable[[], None]] = []
        house.wire = self._take

    def _take(self, message: Any, deliver: Callable[[Any], None]) -> None:
        if isinstance(message, UtilityReply):
            self.held.append(lambda: deliver(message))
        else:
            deliver(message)

    def let(self) -> None:
        held, self.held = self.held, []
        for deliver in held:
            deliver()


@asynccontextmanager
async def starting(
    checkpoint: Path, *modules: str, start: Start | None = None
) -> AsyncIterator[tuple[Service, HeldReplies]]:
    """A service whose engine is up, and has not answered anything yet."""
    settings = Settings(load_format="dummy", lora_modules=modules)
    client = engine_client(settings)
    service = Service(settings, Checkpoint(checkpoint, "tiny", Source.DIRECTORY), describe(checkpoint), client)
    async with open_memory_house(checkpoint, max_loras=4) as house, trio.open_nursery() as nursery:
        replies = HeldReplies(house)
        nursery.start_soon(client.run, house)
        nursery.start_soon(announce, service, None, start or Start())
        await client.attached_once.wait()
        await wait_all_tasks_blocked()
        yield service, replies
        nursery.cancel_scope.cancel()


async def status(service: Service, path: str) -> int:
    exchange = Exchange(http_scope("GET", path))
    await exchange.run(service.app)
    return exchange.status


async def test_requests_are_taken_once_the_adapters_are_checked(checkpoint: Path, tmp_path: Path) -> None:
    modules = [f"{name}={write_adapter(tmp_path / name, seed=seed)}" for seed, name in enumerate(("one", "two"))]
    async with starting(checkpoint, *modules) as (service, replies):
        for _ in modules:  # one after the other
            assert service.client.readiness == Readiness(False, BEING_READ)
            assert (await status(service, "/ready"), await status(service, "/health")) == (503, 200)
            with pytest.raises(UnavailableError, match=BEING_READ):
                await collect(service.client, a_prompt(None, 2))
            assert not service.client.admitted.is_set()
            replies.let()
            await wait_all_tasks_blocked()
        assert service.client.readiness == Readiness(True)
        assert await status(service, "/ready") == 200
        [(_, ids, *_)] = await collect(service.client, a_prompt(None, 2))
        assert len(ids) == 2


async def test_the_start_says_what_it_waits_for(checkpoint: Path, tmp_path: Path) -> None:
    start = Start()
    async with starting(checkpoint, f"one={write_adapter(tmp_path / 'one')}", start=start) as (_, replies):
        assert start.startup.awaited == "reading --lora-modules"
        replies.let()
        await wait_all_tasks_blocked()
        assert start.startup.is_over


async def test_on_a_terminal_the_model_is_told_in_a_line_without_its_path(checkpoint: Path) -> None:
    async with starting(checkpoint) as (service, _):
        told = what_is_served_in_short(service)
        facts = service.services.facts()
        tokens = facts.num_blocks * facts.block_size
        assert told == f"dummy weights; context {facts.max_model_len:,}; KV cache {tokens:,} tokens (0 MiB)"
        sizes = [1 << 20, 1023 << 20, (1 << 30) - 4096, 3 << 29]
        assert [binary_size(size) for size in sizes] == ["1 MiB", "1023 MiB", "1 GiB", "1.5 GiB"]


async def test_a_service_with_an_adapter_that_cannot_be_computed_is_never_ready(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with starting(checkpoint, f"one={write_adapter(tmp_path / 'one', r=99)}") as (service, replies):
        replies.let()
        await wait_all_tasks_blocked()
        assert "rank 99" in (service.client.failure or "")
        assert not service.client.admitted.is_set()
        assert (await status(service, "/ready"), await status(service, "/health")) == (503, 503)
    assert "ready in" not in caplog.text


async def test_without_adapters_it_is_ready_with_its_engine(checkpoint: Path) -> None:
    async with starting(checkpoint) as (service, _):
        assert service.client.readiness == Readiness(True)
        assert service.client.admitted.is_set()


async def test_a_service_manager_hears_that_it_is_ready_after_the_check(checkpoint: Path, tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.setblocking(False)
        module = f"one={write_adapter(tmp_path / 'one')}"
        async with starting(checkpoint, module) as (service, replies), trio.open_nursery() as nursery:
            with open_notifier({"NOTIFY_SOCKET": address}) as notifier:
                nursery.start_soon(ServiceReport(service.client, notifier).run, service.client.admitted)
                await wait_all_tasks_blocked()
                assert manager.recv(4096) == f"STATUS={BEING_READ}; 0 running, 0 waiting".encode()
                replies.let()
                await wait_all_tasks_blocked()
                assert manager.recv(4096) == b"READY=1\nSTATUS=ready; 0 running, 0 waiting"
                nursery.cancel_scope.cancel()
