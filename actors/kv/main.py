"""The KV connector as a process: it keeps blocks of one engine's keys and values, over the engine's incarnations.

It hears of its engine from the supervisor, and has a window for it as soon as it knows what a block is. An engine with
another layout has another window, and the first one is let go of with all that is in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

import trio

from actors.control import Control, Pulse
from actors.kv.counters import Counters
from actors.kv.disk_desk import InThread, OpenFile, in_thread
from actors.kv.disk_file import DiskFile
from actors.kv.lending import OpenPeers
from actors.kv.peers import open_peers
from actors.kv.tenancy import ClosableOutbox, Tenancy, make_window
from actors.kv.window import Window
from protocol.codec import KV_INPUT, KV_OUTPUT
from protocol.kv import KvInput
from protocol.links import Inbox, Links, open_links, receive_batch
from protocol.spec import KvEngine, KvFacts, KvSpec

CLOSE_SECONDS = 1.0
"""Between two tries to close an old window that somebody still reads or writes."""


@final
class KvActor:
    """A connector, without its links and pipes."""

    def __init__(
        self,
        spec: KvSpec,
        connect: Callable[[str], ClosableOutbox],
        ready: Callable[[KvFacts], Awaitable[None]],
        pulse: Pulse,
        open_peers: OpenPeers = open_peers,
        open_file: OpenFile = DiskFile,
        in_thread: InThread = in_thread,
    ) -> None:
        """`connect` makes the way to an engine."""
        self._spec = spec
        self._connect = connect
        self._ready = ready
        self._pulse = pulse
        self._open_peers = open_peers
        self._open_file = open_file
        self._in_thread = in_thread
        self._counters = Counters()
        self._tenancy: Tenancy | None = None
        self._old_windows: list[Window] = []

    async def run(self, inbox: Inbox[KvInput], engines: Inbox[KvEngine]) -> None:
        """Until cancelled. Raises StartError."""
        self._pulse.enter("wait")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear, inbox)
                nursery.start_soon(self._close_windows)
                while True:
                    await self._take(await engines.receive(), nursery)
        finally:
            if self._tenancy is not None:
                self._retire(self._tenancy)
            self._close_old_windows()

    async def _take(self, message: KvEngine, nursery: trio.Nursery) -> None:
        if message.layout is None:
            if self._tenancy is not None:
                self._tenancy.engine_went(message.epoch)
            return
        tenancy = self._tenancy
        if tenancy is None or tenancy.window.layout != message.layout:
            if tenancy is not None:
                await tenancy.end()
                self._retire(tenancy)
            window = make_window(self._spec, message.layout)
            tenancy = Tenancy(self._spec, window, self._counters, self._open_peers, self._open_file, self._in_thread)
            self._tenancy = tenancy
            await nursery.start(tenancy.run)
        tenancy.engine_came(message.epoch, self._connect(message.address))
        self._pulse.enter("serve")
        await self._ready(
            KvFacts(self._spec.epoch, message.epoch, self._spec.inbox_address, tenancy.window.described())
        )

    async def _hear(self, inbox: Inbox[KvInput]) -> None:
        while True:
            messages = await receive_batch(inbox)
            if self._tenancy is not None:
                self._tenancy.hear(messages)

    # ------------------------------------------------------------------ windows

    def _retire(self, tenancy: Tenancy) -> None:
        """It is over."""
        self._tenancy = None
        self._counters.leases_granted += tenancy.leases.num_granted
        self._counters.leases_expired += tenancy.leases.num_expired
        self._counters.failures["disk"] += tenancy.num_disk_failures
        self._old_windows.append(tenancy.window)

    async def _close_windows(self) -> None:
        while True:
            self._close_old_windows()
            await trio.sleep(CLOSE_SECONDS)

    def _close_old_windows(self) -> None:
        """Those that no thread and no connection is still at."""
        self._old_windows = [window for window in self._old_windows if not closes(window)]


def closes(window: Window) -> bool:
    try:
        window.close()
    except BufferError:
        return False
    return True


async def run_kv_process(spec: KvSpec, control: Control) -> None:
    """Keep KV blocks until cancelled."""

    def connect_over(links: Links) -> Callable[[str], ClosableOutbox]:
        return lambda address: links.push(address, KV_OUTPUT)

    with open_links() as links:
        inbox = links.pull(spec.inbox_address, KV_INPUT)
        await KvActor(spec, connect_over(links), control.ready, control.pulse).run(inbox, control.engines)
