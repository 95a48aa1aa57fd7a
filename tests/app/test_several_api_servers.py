"""What several API servers tell as one: metrics, load, adapters, holds. Their processes are in tests/end_to_end."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import attrs
import msgspec
import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly
from prometheus_client.parser import text_string_to_metric_families

from app import api_serving
from app.adapter_paths import AdapterPolicy
from app.adapters import Adapter, Adapters
from app.api_identity import ALONE, ApiIdentity
from app.api_servers import Whole
from app.checkpoints.resolve import Checkpoint, Source
from app.engine import LorasInUse, Prompt
from app.engine_client import ActorEngineClient
from app.journal import MOST_AHEAD, Entry
from app.lora_metrics import LoraCollector
from app.mailbox import ActorGeneration
from app.metrics import Metrics
from app.metrics_page import Page, read_page
from app.notify import status_line
from app.other_loads import loads_of_others, sequences_of_others
from app.peers import CountedElsewhere
from app.remote_peers import RemotePeers
from app.settings import Settings
from app.startup import SHARED_AS, Startup
from protocol.api import PageAsked, PeerPage, PeerPages, ServerIs, SharedIs
from protocol.engine_stats import EngineStats
from protocol.errors import UnavailableError
from protocol.ids import ClientIndex, EngineIndex, Epoch, RequestId
from protocol.lora import LoraId, LoraRequest
from protocol.messages import EngineCoreRequest
from protocol.operations import RunState
from protocol.sampling import SamplingParams
from tests.helpers.adapters import write_adapter
from tests.helpers.app_under_test import MODEL, AppUnderTest, make_app
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.memory_house import open_memory_house

ADAPTER = Adapter(LoraRequest("pirate", LoraId(5), "/a"), 1_700_000_000)
HELD = RunState(is_paused=True)


@attrs.define
class OtherServers:
    """Fulfils app.peers.Peers: what they count is the test's, and what they were told is kept."""

    counted: list[CountedElsewhere] = attrs.field(factory=list)
    adapters: list[tuple[str, str]] = attrs.field(factory=list)

    async def pages(self) -> list[CountedElsewhere]:
        await trio.lowlevel.checkpoint()
        return self.counted

    async def adapter_came(self, adapter: Adapter) -> None:
        self.adapters.append(("came", adapter.name))

    async def adapter_went(self, name: str) -> None:
        self.adapters.append(("went", name))


async def served(num_prompts: int, running: int = 0, steps: int = 0) -> AppUnderTest:
    """One that has told so many answers, and knows so much of the engines."""
    under_test = make_app(peers=OtherServers())
    for _ in range(num_prompts):
        await under_test.complete("a", max_tokens=4)
    under_test.engine.stats = EngineStats(running, num_steps=steps)
    return under_test


def page_of(under_test: AppUnderTest) -> Page:
    return read_page(under_test.services.metrics.page())


def values(metrics: Metrics, others: list[CountedElsewhere]) -> dict[str, float]:
    page, _ = metrics.render("", others)
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found[sample.name] += sample.value
    return found


async def test_what_was_told_to_clients_is_added_up_and_what_engines_count_is_not() -> None:
    ours, theirs = await served(2, running=5, steps=30), await served(3, running=5, steps=40)
    theirs.engine.num_requests, theirs.services.metrics.requests.num_open = 4, 2
    ours.services.peers.counted = [CountedElsewhere(page_of(theirs), is_live=True)]
    found = values(ours.services.metrics, ours.services.peers.counted)

    assert found["vllm:generation_tokens_total"] == 5 * 4
    assert found["vllm:request_generation_tokens_count"] == 5
    assert found["vllm:time_to_first_token_seconds_count"] == 5
    assert found["http_requests_total"] == 5
    assert found["trillm:engine_steps_total"] == 40
    assert found["vllm:num_requests_running"] == 5
    assert found["trillm:requests_live"] == 4
    assert (await ours.get("/load")).json == {"server_load": 2}


async def test_who_is_down_counts_with_what_it_had_told_and_has_nothing_open() -> None:
    ours, theirs = await served(1), await served(3)
    theirs.engine.num_requests, theirs.services.metrics.requests.num_open = 4, 2
    ours.services.peers.counted = [CountedElsewhere(page_of(theirs), is_live=False)]
    found = values(ours.services.metrics, ours.services.peers.counted)

    assert found["vllm:generation_tokens_total"] == 4 * 4
    assert found["trillm:requests_live"] == 0
    assert (await ours.get("/load")).json == {"server_load": 0}


async def test_who_is_started_again_goes_on_counting() -> None:
    before, after = await served(3, steps=50), await served(1, steps=20)
    after.services.metrics.past = page_of(before)
    found = values(after.services.metrics, [])

    assert found["vllm:generation_tokens_total"] == 4 * 4
    assert found["trillm:engine_steps_total"] == 50
    again = await served(1)
    again.services.metrics.past = page_of(after)
    assert values(again.services.metrics, [])["vllm:generation_tokens_total"] == 5 * 4


async def test_the_page_of_several_is_in_the_format_of_one() -> None:
    ours, theirs = await served(1), await served(2)
    counted = [CountedElsewhere(page_of(theirs), is_live=True)]
    page, content_type = ours.services.metrics.render("application/openmetrics-text", counted)
    names = {sample.name for family in strictly(page.decode()) for sample in family.samples}

    assert content_type.startswith("application/openmetrics-text")
    assert "vllm:e2e_request_latency_seconds_bucket" in names
    assert not any(name.startswith(("process_", "python_")) for name in names), "they are of one process"
    for family in strictly(page.decode()):  # each series once, each histogram in order
        series = [(sample.name, *sorted(sample.labels.items())) for sample in family.samples]
        assert len(series) == len(set(series))


def test_adapters_in_use_anywhere_are_in_use() -> None:
    def metrics(*names: str) -> Metrics:
        engine = FakeEngine(make_app().services.tokenizer, loras_in_use=LorasInUse(names, ("queued",)))
        made = Metrics(engine, MODEL, has_peers=True)
        made.add(LoraCollector(engine, 4, lambda: 7.0))
        return made

    theirs = CountedElsewhere(read_page(metrics("b", "c").page()), is_live=True)
    page, _ = metrics("a", "b").render("", [theirs])

    assert 'running_lora_adapters="a,b,c",waiting_lora_adapters="queued"} 7.0' in page.decode()


# ---------------------------------------------------------------------- what they let each other know


class Relay:
    """The supervisor's part for several servers: fulfils as much of actors.handles.ApiHouse as they share by."""

    def __init__(self) -> None:
        self.follows: list = []
        self.log: list[tuple[str, bytes | None]] = []
        self.pages_told: list[PeerPage] = []
        self.num_polls = 0
        self.answers = True

    def follow(self, take) -> None:
        self.follows.append(take)

    def share_soon(self, key: str, value: bytes | None) -> None:
        self.log.append((key, value))
        for take in self.follows:
            take(SharedIs(len(self.log), key, value))

    async def share(self, key: str, value: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        if not self.answers:
            raise UnavailableError("it does not answer")
        self.share_soon(key, value)

    async def pages(self) -> list[PeerPage]:
        self.num_polls += 1
        await trio.sleep(0.5)
        if not self.answers:
            raise UnavailableError("it does not answer")
        return self.pages_told

    def tell_page(self, page: bytes, call_id: int = 0) -> None:
        self.pages_told.append(PeerPage(page, is_live=True))


@attrs.define
class Learnt:
    """What of app/engine_client.py hears of the others."""

    states: dict[int, RunState] = attrs.field(factory=dict)
    num_forgotten: int = 0

    def learn(self, index: EngineIndex, state: RunState) -> None:
        self.states[index] = state

    def forget_caches(self) -> None:
        self.num_forgotten += 1


def joined_to(relay: Relay, *adapters: Adapter) -> tuple[RemotePeers, Learnt, Adapters, Metrics]:
    peers, learnt, found = RemotePeers(relay), Learnt(), Adapters(adapters)
    metrics = make_app(peers=OtherServers()).services.metrics
    peers.follow(learnt, found, metrics)
    return peers, learnt, found, metrics


async def test_adapters_come_and_go_everywhere_and_one_from_the_start_stays_gone() -> None:
    relay = Relay()
    first = attrs.evolve(ADAPTER, lora=LoraRequest("first", LoraId(6), "/b"))
    peers, _, here, _ = joined_to(relay, first)
    _, _, there, _ = joined_to(relay, first)
    await peers.adapter_came(ADAPTER)
    assert [*here] == [*there] == [first, ADAPTER]
    await peers.adapter_went("first")
    await peers.adapter_went("pirate")
    assert [*here] == [*there] == []
    # What a server that begins later is told: keys with a value.
    assert relay.log[-2:] == [("adapter first", b""), ("adapter pirate", None)]


async def test_each_has_the_seconds_of_the_whole_start_also_one_that_begins_later() -> None:
    relay, startup = Relay(), Startup()
    RemotePeers(relay, startup).follow(Learnt(), Adapters(), make_app().services.metrics)
    relay.share_soon(SHARED_AS, msgspec.msgpack.encode({"load": 3.0}))
    startup.finish()
    assert (startup.seconds, startup.total) == ({"load": 3.0}, 3.0)


async def test_holds_are_known_everywhere_before_they_are_answered() -> None:
    relay = Relay()
    peers, _, _, _ = joined_to(relay)
    _, learnt, _, _ = joined_to(relay)
    await peers.settle()
    assert relay.log == [], "there was nothing to wait for"
    peers.held(EngineIndex(2), HELD)
    peers.caches_emptied()
    await peers.settle()
    assert learnt.states == {2: HELD}
    assert learnt.num_forgotten == 1
    assert [key for key, _ in relay.log] == ["held 2", "caches", "settled"]
    relay.answers = False
    peers.held(EngineIndex(2), RunState())
    await peers.settle()  # it is done, whether or not the others know: not the client's failure


async def test_pages_are_asked_for_once_for_all_who_wait(autojump_clock) -> None:
    relay = Relay()
    peers, _, _, metrics = joined_to(relay)
    relay.follows[0](PageAsked(3))
    assert read_page(relay.pages_told[0].page) == read_page(metrics.page())
    found: list = []

    async def ask() -> None:
        found.append(await peers.pages())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.1)
        for _ in range(20):
            nursery.start_soon(ask)
    assert relay.num_polls == 2, "who came during the first is answered by the second"
    assert all(len(pages) == 1 for pages in found)
    relay.answers = False
    assert await peers.pages() == []


async def test_who_waits_for_pages_is_answered_also_if_who_has_asked_for_them_leaves(autojump_clock) -> None:
    relay = Relay()
    peers, _, _, metrics = joined_to(relay)
    relay.tell_page(metrics.page())
    found: list = []

    async def ask() -> None:
        found.append(await peers.pages())

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.1):
            nursery.start_soon(ask)
            await peers.pages()
    assert [len(pages) for pages in found] == [1]


def test_a_predecessor_s_page_is_taken_over() -> None:
    relay = Relay()
    _, _, _, metrics = joined_to(relay)
    page = metrics.page()
    relay.follows[0](PeerPages(0, [PeerPage(page, is_live=False)]))
    assert metrics.past == read_page(page)


async def test_a_route_that_loads_an_adapter_tells_the_others(tmp_path: Path) -> None:
    peers = OtherServers()
    policy = AdapterPolicy(is_enabled=True, allows_updates=True)
    under_test = make_app(peers=peers, adapter_policy=policy)
    path = write_adapter(tmp_path / "one")
    await under_test.post("/v1/load_lora_adapter", lora_name="one", lora_path=str(path))
    await under_test.post("/v1/unload_lora_adapter", lora_name="one")

    assert peers.adapters == [("came", "one"), ("went", "one")]


@attrs.define
class Standings:
    """As much of actors.handles.ApiServersView as the main process reports."""

    told: list[ServerIs | None]
    failure: str | None = None

    def standings(self) -> list[ServerIs | None]:
        return self.told


def test_the_service_manager_hears_of_all_as_of_one() -> None:
    ready = ServerIs(True, "", "engine-1: down", 3, 7, 2, True)
    starting = ServerIs(False, "the actors are being connected", "", 0, 0, 0, False)

    assert status_line(Whole(Standings([None, None]))) == "the API servers are starting; 0 running, 0 waiting"
    assert status_line(Whole(Standings([starting, None]))).startswith("the actors are being connected; ")
    whole = Whole(Standings([ready, None, starting]))
    assert status_line(whole) == "ready, but api-1: down; engine-1: down; 7 running, 2 waiting"
    assert whole.alive
    over = Whole(Standings([ready], "engine-0 died 4 times"))
    assert not over.alive
    assert status_line(over).startswith("engine-0 died 4 times; ")


# ---------------------------------------------------------------------- who is who


def test_no_two_lives_of_any_server_give_the_same_name() -> None:
    lives = [ALONE, *(ApiIdentity(ClientIndex(k), Epoch(e), 2) for k, e in ((0, 3), (1, 4), (0, 9)))]
    requests = [name for life in lives for name in islice(life.request_ids(), 1000)]
    calls = [name for life in lives for name in islice(life.call_ids(), 1000)]

    assert len(set(requests)) == len(requests) == 4000
    assert len(set(calls)) == len(calls) == 4000
    assert max(calls) < 2**63
    assert next(ALONE.request_ids()) == "r1"


def test_others_have_what_an_engine_has_beside_ours() -> None:
    prompt = Prompt([1, 2], SamplingParams(max_tokens=5, seed=1))
    entries = [Entry(RequestId(f"r{n}"), prompt, ActorGeneration([]), 0.0) for n in range(3)]
    for entry, index in zip(entries, (0, 0, 1), strict=True):
        entry.engine = (EngineIndex(index), Epoch(1))
    stats = {EngineIndex(0): EngineStats(4, 3), EngineIndex(1): EngineStats(0, 0), EngineIndex(2): EngineStats(1, 0)}
    others = sequences_of_others(entries, stats)

    assert others == {0: 5, 1: 0, 2: 1}
    assert loads_of_others(others) == {0: 5 * MOST_AHEAD, 1: 0, 2: MOST_AHEAD}


async def test_the_limit_of_live_requests_is_for_all_together(checkpoint: Path, autojump_clock) -> None:
    async with open_memory_house(checkpoint, dummy_step_seconds=0.1) as house, trio.open_nursery() as nursery:
        identity = ApiIdentity(ClientIndex(0), Epoch(7), 2)
        client = ActorEngineClient(max_live_requests=5, clock=trio.current_time, identity=identity)
        nursery.start_soon(client.run, house)
        await client.attached_once.wait()
        prompt = Prompt([5, 6], SamplingParams(max_tokens=9, seed=1))
        client._engines.take(EngineIndex(0), EngineStats(2, 1))  # of another one
        with pytest.raises(UnavailableError, match="3 are running or queued, the limit is 5, and this one asks for 3"):
            async with client.generate([prompt] * 3):
                pass
        async with client.generate([prompt] * 2):
            sent = [message for message in house.engine_inputs if isinstance(message, EngineCoreRequest)]
            assert [message.request_id for message in sent] == ["r7-1", "r7-2"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("changes", [{}, {"api_key": ("k",), "uds": Path("/tmp/s"), "profiler_dir": Path("p")}])
def test_settings_reach_an_api_server_as_they_are(changes: dict) -> None:
    settings = Settings(api_server_count=3, seed=5, lora_modules=("a=/tmp",), allowed_origins=("*",), **changes)
    serving = api_serving.ApiServing(settings, Checkpoint(Path("/m"), "m", next(iter(Source)), Path("/d")))

    assert api_serving.read(api_serving.written(serving)) == serving
