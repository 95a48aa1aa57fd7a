"""Blocks from one connector's window into another's, by each transport, beside a copy of as many bytes in memory and
their way through a plain socket. Once into frames that were written before, or whose memory was found ahead, and once
into new ones, as where more comes together than that is.

A fetch is all that a connector does for one: asking for the loan, reading, and having it confirmed, over a connection
that has been kept. The lender and the plain sender are processes of their own; all ways take turns.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np

from actors.kv.frames import Frames
from actors.kv.leases import Leases
from actors.kv.peers import OtherConnectors, open_peers
from actors.kv.window import Window
from scripts.benchmark.kv import lending_process, plain_socket
from scripts.benchmark.kv.child import open_child
from scripts.benchmark.kv.lending_process import Offer, block_hash, kv_spec, layout, scattered, stamp
from scripts.benchmark.kv.new_frames import NewFrames
from scripts.benchmark.kv.plain_socket import PlainReader
from scripts.benchmark.kv.rates import Rate, RateRow, seconds_of, size_text

WARM_UP = 1
PLAIN_WAYS = {"shm": "memcpy", "tcp": "socket"}
"""What there is for the same task without a connector."""


def ratios(transports: Sequence[str]) -> list[tuple[str, str]]:
    """What is held against what."""
    return [(name, PLAIN_WAYS.get(name, "memcpy")) for name in transports]


@attrs.frozen
class Amount:
    """Of blocks, that go together."""

    frame_bytes: int
    num_bytes: int

    @property
    def num_blocks(self) -> int:
        return max(1, self.num_bytes // self.frame_bytes)

    @property
    def true_bytes(self) -> int:
        return self.num_blocks * self.frame_bytes

    def __str__(self) -> str:
        return f"{size_text(self.frame_bytes)} × {self.num_blocks} = {self.true_bytes / 1e6:.3g} MB"


async def measure_transports(
    frame_bytes: Sequence[int], num_bytes: Sequence[int], transports: Sequence[str], tries: int
) -> AsyncIterator[RateRow]:
    """Each size of a frame in a window of its own. Raises FetchError, StartError and ServerFailedError."""
    for size in frame_bytes:
        amounts = [Amount(size, total) for total in num_bytes]
        with _open_memory(amounts) as memory, _open_lender(amounts, len(transports), tries) as (offer, key):
            async with contextlib.AsyncExitStack() as stack:
                fetchers = {
                    name: await stack.enter_async_context(_open_fetcher(name, memory, key)) for name in transports
                }
                tickets = iter(offer.tickets)
                for amount in amounts:
                    yield await _measure(amount, memory, fetchers, tickets, tries)


async def _measure(
    amount: Amount, memory: _Memory, fetchers: dict[str, OtherConnectors], tickets: Iterator[bytes], tries: int
) -> RateRow:
    news = {name: f"{name}, new frames" for name in fetchers}
    seconds: dict[str, list[float]] = {way: [] for way in ("memcpy", "socket", *fetchers, *news.values())}
    for _ in range(WARM_UP + tries):
        seconds["memcpy"].append(seconds_of(lambda: memory.copy(amount)))
        seconds["socket"].append(seconds_of(lambda: memory.read_socket(amount)))
        for name, peers in fetchers.items():
            seconds[name].append(await _fetch(peers, next(tickets), amount, memory.window, lambda: None))
            renew = memory.new_frames.renew
            seconds[news[name]].append(await _fetch(peers, next(tickets), amount, memory.window, renew))
    return RateRow(str(amount), {way: Rate.of(amount.true_bytes, times[WARM_UP:]) for way, times in seconds.items()})


async def _fetch(
    peers: OtherConnectors, ticket: bytes, amount: Amount, window: Window, prepare: Callable[[], None]
) -> float:
    """Seconds. What came is looked at afterwards."""
    frames = scattered(window.num_frames)[: amount.num_blocks]
    hashes = [block_hash(number) for number in range(amount.num_blocks)]
    for frame in frames:
        window.frame(frame)[:8] = bytes(8)
    prepare()
    began = time.perf_counter()
    fetched = await peers.fetch(ticket, hashes, lambda count: list(frames[:count]), _never)
    seconds = time.perf_counter() - began
    assert fetched.num_blocks == amount.num_blocks, f"{fetched.num_blocks} of {amount.num_blocks} blocks came"
    for number, frame in enumerate(frames):
        assert window.frame(frame)[:8] == stamp(number), f"block {number} did not come into frame {frame}"
    return seconds


def _never(frames: Sequence[int]) -> Callable[[], None]:
    raise AssertionError("these transports stop at once")


@attrs.frozen
class _Memory:
    """Into which all ways move, and whence the plain copy comes. All of it has been written before, but
    for frames that are made new."""

    source: np.ndarray[tuple[int], np.dtype[np.uint8]]
    target: np.ndarray[tuple[int], np.dtype[np.uint8]]
    window: Window
    plain: PlainReader
    new_frames: NewFrames

    def copy(self, amount: Amount) -> None:
        np.copyto(self.target[: amount.true_bytes], self.source[: amount.true_bytes])

    def read_socket(self, amount: Amount) -> None:
        self.plain.read_into(self.target.data[: amount.true_bytes])


@contextlib.contextmanager
def _open_memory(amounts: Sequence[Amount]) -> Iterator[_Memory]:
    most = max(amounts, key=lambda amount: amount.num_blocks)
    job = plain_socket.Job(most.true_bytes)
    with (
        Window(layout(most.frame_bytes), most.num_blocks) as window,
        open_child(plain_socket.__name__, job, plain_socket.Place) as place,
        PlainReader(place) as plain,
        NewFrames(window) as new_frames,
    ):
        for frame in range(window.num_frames):
            window.frame(frame)[:] = bytes(most.frame_bytes)
        yield _Memory(np.ones(most.true_bytes, np.uint8), np.ones(most.true_bytes, np.uint8), window, plain, new_frames)


@contextlib.contextmanager
def _open_lender(amounts: Sequence[Amount], num_transports: int, tries: int) -> Iterator[tuple[Offer, bytes]]:
    """What it lends, and the key."""
    key = secrets.token_bytes(32)
    loans = [amount.num_blocks for amount in amounts for _ in range(2 * (WARM_UP + tries) * num_transports)]
    with tempfile.TemporaryDirectory(prefix="trillm-kv-") as directory:
        path = str(Path(directory) / "kv.sock")
        job = lending_process.Job(path, key, max(loans), amounts[0].frame_bytes, loans)
        with open_child(lending_process.__name__, job, Offer) as offer:
            yield offer, key


@contextlib.asynccontextmanager
async def _open_fetcher(transport: str, memory: _Memory, key: bytes) -> AsyncIterator[OtherConnectors]:
    """A connector that knows this transport alone, and lends nothing."""
    window = memory.window
    spec = kv_spec(f"reader by {transport}", key, window.num_frames * window.frame_bytes, [transport])
    lends_nothing = Leases(Frames(1), 1.0, time.monotonic, most_frames=1)
    async with open_peers(spec, window, lends_nothing) as peers:
        yield peers
