"""What the supervisor does of several API servers: who is told what, and when one is let alone. Without processes: what
keeps them alive, and the links, are the test's."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.api.server import Premises
from actors.api.servers import ApiServers
from actors.handles import ApiTemplate, EngineLost, HouseFailed
from protocol import api
from protocol.ids import ClientIndex, EngineIndex, Epoch
from protocol.sampling import Grammar
from protocol.spec import EngineFacts, EngineSpec

FACTS = EngineFacts(2048, 100, 16, 512, "cpu", "float32", 1, 2)
ENGINE = EngineSpec(EngineIndex(0), Epoch(3), "in", {ClientIndex(i): f"out{i}" for i in range(3)}, "/m")


class Link:
    """What was told, in order."""

    def __init__(self) -> None:
        self.told: list = []

    def send_nowait(self, message: object) -> None:
        if not isinstance(message, api.ActorsAre):
            self.told.append(message)


@attrs.define
class Kept:
    """API servers of which each has a link, and what the supervisor was asked."""

    servers: ApiServers
    links: list[Link] = attrs.field(factory=lambda: [Link() for _ in range(3)])
    given_up: list[str] = attrs.field(factory=list)
    ends: dict = attrs.field(factory=dict)
    """By name, to be called: that one has died too often."""

    def say(self, index: int, message: object) -> None:
        server = self.servers._servers[index]
        server._act(message, self.servers._nursery)

    def begin(self, index: int) -> None:
        self.servers._servers[index]._link = self.links[index]
        self.servers._begin(self.servers._servers[index])


@asynccontextmanager
async def open_servers() -> AsyncIterator[Kept]:
    kept: Kept

    async def keep_alive(record, incarnation, give_up) -> None:
        died = trio.Event()

        def end(cannot_start: bool = False) -> None:
            record.was_ready, record.fault = not cannot_start, "why"
            kept.servers._servers[int(record.name[-1])]._link = None
            give_up(f"{record.name} died 4 times", "why")
            died.set()

        kept.ends[record.name] = end
        await died.wait()

    async def check(source) -> Grammar:
        await trio.lowlevel.checkpoint()
        return Grammar("g")

    premises = Premises(
        links=None,
        checkpoint="/m",
        new_epoch=lambda: Epoch(9),
        address=lambda name: f"ipc://{name}",
        keep_alive=keep_alive,
        give_up=lambda reason, detail: kept.given_up.append(reason),
        states=lambda: kept.servers.states(),
        check_grammar=check,
    )
    kept = Kept(ApiServers(ApiTemplate(3, (), b""), premises))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.servers.run)
        await wait_all_tasks_blocked()
        for index in range(3):
            kept.begin(index)
        yield kept
        nursery.cancel_scope.cancel()


async def test_each_is_told_of_engines_with_its_own_address():
    async with open_servers() as kept:
        kept.servers.engine_came(ENGINE, FACTS)
        kept.servers.take(EngineLost(EngineIndex(0), Epoch(3), "killed", True))
        for index, link in enumerate(kept.links):
            assert link.told == [
                api.EngineCame(EngineIndex(0), Epoch(3), "in", f"out{index}", FACTS),
                api.EngineWent(EngineIndex(0), Epoch(3), "killed", True),
            ]


async def test_requests_are_taken_once_all_do():
    async with open_servers() as kept:
        for index in (0, 2):
            kept.say(index, api.ServerIs(True, "", "", 0, 0, 0, True))
        kept.say(1, api.ServerIs(False, "starting", "", 0, 0, 0, False))
        assert not kept.servers.admitted.is_set()
        kept.say(1, api.ServerIs(True, "", "", 0, 0, 0, True))
        assert kept.servers.admitted.is_set()


async def test_a_change_reaches_all_in_one_order_and_is_answered_when_the_others_have_it(autojump_clock):
    async with open_servers() as kept:
        kept.say(0, api.Share(5, "adapter a", b"zero"))
        kept.say(1, api.Share(5, "adapter a", b"one"))
        assert [link.told for link in kept.links] == [
            [api.SharedIs(1, "adapter a", b"zero"), api.SharedIs(2, "adapter a", b"one")]
        ] * 3
        kept.say(1, api.ShareTaken(1))
        await wait_all_tasks_blocked()
        assert api.ShareKnown(5) not in kept.links[0].told
        kept.say(2, api.ShareTaken(1))
        await wait_all_tasks_blocked()
        assert kept.links[0].told[-1] == api.ShareKnown(5)
        assert api.ShareKnown(5) not in kept.links[1].told
        await trio.sleep(1.1)  # who does not answer is not waited for
        assert kept.links[1].told[-1] == api.ShareKnown(5)


async def test_who_begins_is_told_what_holds_and_what_its_predecessor_counted():
    async with open_servers() as kept:
        kept.servers.engine_came(ENGINE, FACTS)
        kept.say(0, api.Share(1, "adapter a", b"a"))
        kept.say(0, api.Share(2, "adapter b", b"b"))
        kept.say(0, api.Share(3, "adapter a", None))
        kept.servers._servers[1].past = b"page"
        kept.links[1].told.clear()
        kept.begin(1)
        assert kept.links[1].told == [
            api.SharedIs(0, "adapter b", b"b"),
            api.PeerPages(0, [api.PeerPage(b"page", False)]),
            api.EngineCame(EngineIndex(0), Epoch(3), "in", "out1", FACTS),
        ]


async def test_the_others_say_what_they_count_or_count_with_their_last_word(autojump_clock):
    async with open_servers() as kept:
        kept.say(0, api.PageTold(0, b"0"))
        kept.say(1, api.PageTold(0, b"old 1"))
        kept.say(2, api.PageTold(0, b"old 2"))
        kept.say(0, api.PagesAsked(7))
        assert [link.told for link in kept.links] == [[], [api.PageAsked(1)], [api.PageAsked(1)]]
        kept.say(1, api.PageTold(1, b"new 1"))
        await trio.sleep(1.1)
        pages = [api.PeerPage(b"new 1", True), api.PeerPage(b"old 2", False)]
        assert kept.links[0].told == [api.PeerPages(7, pages)]


async def test_a_grammar_is_checked_for_who_asks():
    async with open_servers() as kept:
        kept.say(2, api.GrammarAsked(4, None))
        await wait_all_tasks_blocked()
        assert [link.told for link in kept.links] == [[], [], [api.GrammarAnswered(4, Grammar("g"))]]


async def test_a_grammar_that_is_no_longer_wanted_is_not_checked_even_if_both_is_heard_at_once():
    async with open_servers() as kept:
        kept.say(2, api.GrammarAsked(4, None))
        kept.say(2, api.GrammarLeft(4))
        await wait_all_tasks_blocked()
        assert kept.links[2].told == []
        assert kept.servers._servers[2]._grammars == {}


async def test_a_successor_is_not_told_what_its_predecessor_asked(autojump_clock):
    async with open_servers() as kept:
        kept.say(0, api.PagesAsked(1))
        kept.servers._servers[0].record.epoch = Epoch(10)
        await trio.sleep(1.1)
        assert kept.links[0].told == []


async def test_one_that_dies_too_often_is_tried_again_a_minute_later_as_long_as_another_serves(caplog, autojump_clock):
    async with open_servers() as kept:
        before = kept.ends.pop("api-1")
        with caplog.at_level(logging.ERROR):
            before()
        assert "the others go on" in caplog.text
        assert kept.given_up == []
        await trio.sleep(59)
        assert "api-1" not in kept.ends
        await trio.sleep(2)
        assert "api-1" in kept.ends


@pytest.mark.parametrize("cannot_start", [True, False])
async def test_one_that_never_could_start_or_was_the_last_ends_the_service(cannot_start):
    async with open_servers() as kept:
        if not cannot_start:
            kept.ends["api-0"]()
            kept.ends["api-2"]()
        kept.ends["api-1"](cannot_start)
        assert kept.given_up == ["api-1 died 4 times"]


async def test_nobody_who_rests_is_waited_for_when_all_are_to_stop(autojump_clock):
    async with open_servers() as kept:
        kept.ends["api-1"]()
        began = trio.current_time()
        kept.servers.stop(15)
        kept.servers.stop(2)
        assert kept.links[0].told == [api.StopServing(15), api.StopServing(2)]
        for server in kept.servers._servers:
            assert server.is_to_stop
        await kept.servers._are_to_stop.wait()
        assert trio.current_time() == began


async def test_a_failure_is_told_to_all_once_also_if_one_of_them_has_found_it():
    async with open_servers() as kept:
        kept.say(0, api.CannotGoOn("no adapter"))
        assert kept.given_up == ["no adapter"]
        kept.servers.take(HouseFailed("no adapter"))
        kept.say(1, api.CannotGoOn("no adapter"))
        assert kept.given_up == ["no adapter"]
        assert [link.told for link in kept.links] == [[api.HouseOver("no adapter")]] * 3
        assert kept.servers.failure == "no adapter"
