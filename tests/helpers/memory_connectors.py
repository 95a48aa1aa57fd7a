"""The connectors of a memory house: one per engine's incarnation, what it has saved being kept for the next one. What
another engine's connector has is found by its ticket only.
"""

from __future__ import annotations

import math
from collections import defaultdict

import attrs
import trio

from actors.engine.kv_link import KvAccess
from protocol.ids import EngineIndex, Epoch
from protocol.kv import BlockHash, KvFind, KvInput, KvLayout, KvOutput
from protocol.spec import Kv, KvFacts
from tests.helpers.memory_connector import MemoryConnector

NUM_FRAMES = 64


@attrs.define(eq=False)
class Linked:
    """An engine that runs, and what it has of a connector."""

    epoch: Epoch
    layout: KvLayout
    announce: trio.MemorySendChannel[Kv]
    say: trio.MemorySendChannel[KvOutput]
    connector: MemoryConnector | None = None


class MemoryConnectors:
    def __init__(self) -> None:
        self.answers = True
        """Finds and exports are answered at once; else by `answer`."""
        self.find_tickets: list[bytes] = []
        """With which engines have asked."""
        self.tickets: dict[bytes, list[BlockHash]] = {}
        self._disks: defaultdict[EngineIndex, dict[BlockHash, bytes]] = defaultdict(dict)
        self._linked: dict[EngineIndex, Linked] = {}
        self._all: list[MemoryConnector] = []

    def engine_came(self, index: EngineIndex, epoch: Epoch, layout: KvLayout) -> KvAccess:
        announce, announced = trio.open_memory_channel[Kv](math.inf)
        say, inbox = trio.open_memory_channel[KvOutput](math.inf)
        self._linked[index] = Linked(epoch, layout, announce, say)
        self.come(index)
        return KvAccess(epoch, announced, inbox, lambda address: ToConnector(self, index, address))

    def engine_went(self, index: EngineIndex) -> None:
        del self._linked[index]

    def come(self, index: EngineIndex) -> None:
        linked = self._linked[index]
        kv_epoch = len(self._all) + 1
        connector = MemoryConnector(linked.layout, NUM_FRAMES, kv_epoch, self._disks[index], linked.epoch)
        connector.tickets = self.tickets
        self._all.append(connector)
        linked.connector = connector
        window = connector.window.described()
        linked.announce.send_nowait(Kv(KvFacts(connector.kv_epoch, linked.epoch, str(kv_epoch), window)))
        connector.grant(8)
        self._flush(linked)

    def die(self, index: EngineIndex) -> None:
        self._linked[index].connector = None
        self._linked[index].announce.send_nowait(Kv(None))

    def num_asked(self, index: EngineIndex) -> int:
        """Finds and exports that wait for an answer."""
        connector = self._linked[index].connector
        return 0 if connector is None else len(connector.asked) + len(connector.exports)

    def answer(self) -> None:
        """All that was asked, and what will be."""
        self.answers = True
        for linked in self._linked.values():
            self._flush(linked)

    def hear(self, index: EngineIndex, address: str, message: KvInput) -> None:
        linked = self._linked.get(index)
        if linked is None or linked.connector is None or message.epoch != linked.epoch:
            return
        if address != str(linked.connector.kv_epoch):
            return  # that one is gone
        if isinstance(message, KvFind):
            self.find_tickets.append(message.ticket)
            self._fetch(index, message)
        linked.connector.hear(message)
        self._flush(linked)

    def check(self) -> None:
        """Nobody has written where nobody was to write."""
        for connector in self._all:
            connector.check()

    def close(self) -> None:
        for connector in self._all:
            connector.close()

    def _fetch(self, index: EngineIndex, find: KvFind) -> None:
        for block_hash in self.tickets.get(find.ticket, []):
            for disk in list(self._disks.values()):
                if block_hash in disk:
                    self._disks[index].setdefault(block_hash, disk[block_hash])

    def _flush(self, linked: Linked) -> None:
        connector = linked.connector
        if connector is None:
            return
        if self.answers:
            connector.answer_all()
        elif len(connector.granted) < 4:
            connector.grant(8)
        said, connector.said = connector.said, []
        for message in said:
            linked.say.send_nowait(message)


class ToConnector:
    """An engine's way to it."""

    def __init__(self, connectors: MemoryConnectors, index: EngineIndex, address: str) -> None:
        self._connectors = connectors
        self._index = index
        self._address = address
        self._is_open = True

    def send_nowait(self, value: KvInput) -> None:
        assert self._is_open
        self._connectors.hear(self._index, self._address, value)

    def close(self) -> None:
        self._is_open = False
