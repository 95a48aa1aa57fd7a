"""A connector that lends, in a process of its own: a window, its frames, leases on them, and ears for others, without
an engine. Run as a module by scripts/benchmark/kv/transports."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence

import msgspec
import trio

from actors.kv.frames import Frames
from actors.kv.leases import Leases
from actors.kv.peers import open_peers
from actors.kv.window import Window
from protocol.ids import EngineIndex, Epoch
from protocol.kv import KV_TRANSPORTS, BlockHash, KvLayout
from protocol.nixl_module import nixl_module
from protocol.spec import KvSpec
from scripts.benchmark.kv.child import say

LEASE_SECONDS = 3600.0


class Job(msgspec.Struct, frozen=True):
    """What it is started with."""

    path: str
    """Of its socket for connectors of this host."""
    key: bytes
    num_frames: int
    frame_bytes: int
    loans: list[int]
    """Of how many blocks each. They may be fetched once."""


class Offer(msgspec.Struct, frozen=True):
    tickets: list[bytes]
    """For each loan one."""


def layout(frame_bytes: int) -> KvLayout:
    return KvLayout(b"scripts/bench kv".ljust(32, b"."), 16, [frame_bytes])


def installed_transports() -> list[str]:
    return [name for name in KV_TRANSPORTS if name != "nixl" or nixl_module() is not None]


def kv_spec(
    engine_id: str,
    key: bytes,
    window_bytes: int,
    transports: list[str],
    path: str | None = None,
    host: str | None = None,
) -> KvSpec:
    return KvSpec(
        EngineIndex(0),
        Epoch(1),
        "",
        engine_id,
        key,
        window_bytes,
        peer_path=path,
        peer_host=host,
        transports=transports,
    )


def block_hash(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32, "big"))


def stamp(number: int) -> bytes:
    """What block `number` begins with, so that a reader can tell that it came."""
    return (number + 1).to_bytes(8, "big")


def scattered(count: int) -> Sequence[int]:
    """An order of frames as that of a window that has been in use for long: a run of neighbours is rare."""
    order = list(range(count))
    random.Random(count).shuffle(order)
    return order


async def lend(job: Job) -> None:
    """Until it is killed."""
    with Window(layout(job.frame_bytes), job.num_frames) as window:
        frames = Frames(job.num_frames)
        frames.grant(job.num_frames)
        for number, frame in enumerate(scattered(job.num_frames)):
            window.frame(frame)[:] = stamp(number) + b"\x55" * (window.frame_bytes - 8)
            frames.save(frame, block_hash(number))
        leases = Leases(frames, LEASE_SECONDS, time.monotonic, most_frames=job.num_frames + 1)
        size = job.num_frames * window.frame_bytes
        spec = kv_spec("lender", job.key, size, installed_transports(), job.path, "127.0.0.1")
        async with open_peers(spec, window, leases) as peers:
            tickets = []
            for count in job.loans:
                granted = leases.grant([block_hash(number) for number in range(count)])
                assert granted is not None, "a window that has all its blocks lends them"
                tickets.append(peers.ticket(*granted, LEASE_SECONDS))
            say(Offer(tickets))
            await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(lend, msgspec.json.decode(sys.argv[1], type=Job))
