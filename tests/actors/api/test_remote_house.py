"""The house as one of several API servers has it, over links whose other ends are the test's."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.api.remote_house import RemoteHouse
from actors.api.standings import told
from actors.handles import ActorState, EngineLost, HouseFailed, OutputLost
from protocol import api
from protocol.codec import APP_INPUT, ENGINE_INPUT, OUTPUT_INPUT
from protocol.errors import GrammarError, UnavailableError
from protocol.ids import ClientIndex, EngineIndex, Epoch
from protocol.links import Links, open_links
from protocol.messages import AbortRequest, AttachEngine, EngineAttached
from protocol.sampling import Grammar, GrammarKind, GrammarSource
from protocol.spec import EngineFacts

FACTS = EngineFacts(2048, 100, 16, 512, "cpu", "float32", 1, 2)
SOURCE = GrammarSource(GrammarKind.REGEX, "a+")
ATTACHED = EngineAttached(EngineIndex(0), Epoch(3))
STATE = ActorState("output-1", Epoch(4), 17, True, "serve", 0.0, 0.25, 1.0, 0, None, is_needed=False)


@attrs.define
class Told:
    """A house, what it told the app, and both sides of its way to the supervisor."""

    house: RemoteHouse
    links: Links
    directory: Path
    say: trio.MemorySendChannel
    heard: trio.MemoryReceiveChannel
    events: list = attrs.field(factory=list)

    def came(self, epoch: int = 3) -> api.EngineCame:
        address = f"ipc://{self.directory}/e{epoch}"
        return api.EngineCame(EngineIndex(0), Epoch(epoch), f"{address}.in", f"{address}.out", FACTS)

    def output(self, epoch: int = 4) -> api.OutputCame:
        address = f"ipc://{self.directory}/o{epoch}"
        return api.OutputCame(Epoch(epoch), f"{address}.in", f"{address}.app")

    async def tell(self, *messages: object) -> None:
        for message in messages:
            self.say.send_nowait(message)
        await wait_all_tasks_blocked()


@asynccontextmanager
async def open_house(directory: Path) -> AsyncIterator[Told]:
    say, inbox = trio.open_memory_channel(math.inf)
    outbox, heard = trio.open_memory_channel(math.inf)
    with open_links() as links:
        house = RemoteHouse(ClientIndex(1), links, outbox)
        found = Told(house, links, directory, say, heard)
        house.listen(found.events.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(house.run, inbox)
            yield found
            nursery.cancel_scope.cancel()


async def test_an_engine_is_attached_once_its_facts_are_known_whoever_speaks_first(tmp_path):
    async with open_house(tmp_path) as found:
        output = found.output()
        handler = found.links.pull(output.inbox_address, OUTPUT_INPUT)
        await found.tell(output)
        to_app = found.links.push(output.app_address, APP_INPUT)
        to_app.send_nowait(ATTACHED)
        with trio.move_on_after(0.05):
            await trio.sleep_forever()
        assert found.events == []
        came = found.came()
        await found.tell(came)
        assert found.events == [ATTACHED]
        assert found.house.engine_facts(EngineIndex(0), Epoch(3)) == FACTS
        assert await handler.receive() == AttachEngine(0, 3, came.requests_address, came.outputs_address)


async def test_what_is_sent_goes_to_the_incarnation_that_is_up_and_nowhere_else(tmp_path):
    async with open_house(tmp_path) as found:
        came = found.came()
        engine = found.links.pull(came.requests_address, ENGINE_INPUT)
        abort = AbortRequest(Epoch(3), ClientIndex(1), ["r1"])
        assert not found.house.send_to_engine(EngineIndex(0), abort)
        assert not found.house.send_to_output(abort)
        await found.tell(came)
        assert found.house.send_to_engine(EngineIndex(0), abort)
        assert await engine.receive() == abort
        await found.tell(api.EngineWent(EngineIndex(0), Epoch(2), "an older one", False))
        assert found.house.send_to_engine(EngineIndex(0), abort)
        await found.tell(api.EngineWent(EngineIndex(0), Epoch(3), "killed", True))
        assert not found.house.send_to_engine(EngineIndex(0), abort)
        assert found.events[-1] == EngineLost(EngineIndex(0), Epoch(3), "killed", True)


async def test_what_an_output_handler_had_still_to_say_is_not_heard_after_its_end(tmp_path):
    async with open_house(tmp_path) as found:
        output = found.output()
        await found.tell(found.came(), output)
        to_app = found.links.push(output.app_address, APP_INPUT)
        await found.tell(api.OutputWent("killed"))
        to_app.send_nowait(ATTACHED)
        with trio.move_on_after(0.05):
            await trio.sleep_forever()
        assert found.events == [OutputLost("killed")]


async def test_a_grammar_is_checked_by_the_supervisor(tmp_path):
    async with open_house(tmp_path) as found, trio.open_nursery() as nursery:
        answers = {
            1: api.GrammarAnswered(1, Grammar("g")),
            2: api.GrammarAnswered(2, None, "it is wrong"),
            3: api.GrammarAnswered(3, None, "too many wait", "grammar_queue_full", is_busy=True),
        }

        async def answer() -> None:
            for _ in answers:
                asked = await found.heard.receive()
                found.say.send_nowait(answers[asked.call_id])

        nursery.start_soon(answer)
        assert await found.house.check_grammar(SOURCE) == Grammar("g")
        with pytest.raises(GrammarError, match="it is wrong"):
            await found.house.check_grammar(SOURCE)
        with pytest.raises(UnavailableError, match="too many wait"):
            await found.house.check_grammar(SOURCE)


async def test_who_leaves_waits_for_no_grammar_any_more(tmp_path):
    async with open_house(tmp_path) as found:
        with trio.move_on_after(0.01):
            await found.house.check_grammar(SOURCE)
        assert [await found.heard.receive() for _ in range(2)] == [api.GrammarAsked(1, SOURCE), api.GrammarLeft(1)]


async def test_a_supervisor_that_does_not_answer_is_waited_for_some_seconds(tmp_path, autojump_clock):
    async with open_house(tmp_path) as found:
        with pytest.raises(UnavailableError, match="within 3 s"):
            await found.house.pages()


async def test_states_grow_older_until_the_next_word_and_its_own_output_handler_is_needed(tmp_path, autojump_clock):
    async with open_house(tmp_path) as found:
        await found.tell(told([STATE, attrs.evolve(STATE, name="output-0")]))
        await trio.sleep(6)
        ours, other = found.house.states()
        assert ours == attrs.evolve(STATE, heartbeat_age=6.25, is_needed=True)
        assert not other.is_needed


async def test_the_end_and_news_that_come_early_are_kept(tmp_path):
    async with open_house(tmp_path) as found:
        shared = api.SharedIs(5, "held 0", b"x")
        await found.tell(shared, api.HouseOver("no"), api.StopServing(15))
        news: list = []
        found.house.follow(news.append)
        assert news == [shared]
        assert found.events == [HouseFailed("no")]
        assert found.heard.receive_nowait() == api.ShareTaken(5)
        assert await anext(found.house.stops()) == 15
