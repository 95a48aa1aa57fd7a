"""Whatever bytes come, they are a message of the receiver's own union or are refused in the one way that is caught."""

from __future__ import annotations

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.frames import MAX_CONTROL_BYTES, FrameReader, FrameWriter
from protocol import codec
from protocol.links import open_links
from protocol.spec import Heartbeat
from tests.helpers.garbled import garbled
from tests.protocol.test_messages import MESSAGES

FRAMES = {name: [codec.ENCODER.encode(message) for message in found] for name, found in MESSAGES.items()}
ALL_FRAMES = [frame for frames in FRAMES.values() for frame in frames]


@pytest.mark.parametrize("name", list(MESSAGES))
@given(st.one_of(st.binary(max_size=300), st.integers(0, 2**32).map(lambda seed: garbled(ALL_FRAMES, seed))))
@settings(max_examples=300)
def test_a_frame_is_decoded_or_refused_and_nothing_else(name: str, frame: bytes) -> None:
    decode = vars(codec)[name]
    try:
        message = decode.decode(frame)
    except msgspec.DecodeError:
        return
    assert decode.decode(decode.encode(message)) == message or "nan" in repr(message)


@pytest.mark.process
async def test_a_link_counts_garbage_and_drops_it_and_gives_what_is_between(tmp_path) -> None:
    frames = FRAMES["ENGINE_INPUT"]
    with open_links() as links:
        receiver = links.pull(f"ipc://{tmp_path}/s", codec.ENGINE_INPUT)
        sender = links.push(f"ipc://{tmp_path}/s", codec.ENGINE_INPUT)
        decodable = []
        for seed in range(2000):
            frame = garbled(ALL_FRAMES, seed) if seed % 4 else frames[seed // 4 % len(frames)]
            sender._socket.send_nowait(frame)
            try:
                decodable.append(codec.ENGINE_INPUT.decode(frame))
            except msgspec.DecodeError:
                pass
        received = [repr(await receiver.receive()) for _ in decodable]
        assert received == [repr(message) for message in decodable]
        with pytest.raises(trio.WouldBlock):
            receiver.receive_nowait()
        assert receiver.statistics().frames == 2000
        assert receiver.statistics().garbage == 2000 - len(decodable) > 1000


class Pieces(trio.abc.ReceiveStream):
    """A pipe that gives what it has in these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._pieces.pop(0) if self._pieces else b""

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False) if b > a]


@given(st.lists(st.integers(0, 10**6), max_size=20))
@settings(max_examples=100)
def test_control_frames_come_whole_however_the_pipe_cuts_them(places: list[int]) -> None:
    messages = MESSAGES["FROM_CHILD"]
    data = b"".join(len(frame).to_bytes(4, "little") + frame for frame in FRAMES["FROM_CHILD"])

    async def read() -> list[object]:
        reader = FrameReader(Pieces(cut(data, places)), codec.FROM_CHILD)
        received = [await reader.receive() for _ in messages]
        with pytest.raises(trio.EndOfChannel):
            await reader.receive()
        return received

    assert trio.run(read) == messages


@given(
    st.one_of(st.binary(max_size=300), st.integers(0, 2**32).map(lambda seed: garbled(FRAMES["FROM_CHILD"], seed))),
    st.sampled_from([0, 1, 100, 2**16, 2**22, 2**31, 2**32 - 1, None]),
    st.lists(st.integers(0, 10**6), max_size=5),
)
@settings(max_examples=200)
def test_a_control_pipe_ends_in_one_of_three_ways(frame: bytes, length: int | None, places: list[int]) -> None:
    data = (len(frame) if length is None else length).to_bytes(4, "little") + frame

    async def read() -> None:
        reader = FrameReader(Pieces(cut(data * 3, places)), codec.FROM_CHILD)
        with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError, msgspec.DecodeError)):
            for _ in range(1000):
                await reader.receive()

    trio.run(read)


async def test_a_control_frame_longer_than_the_limit_is_not_waited_for() -> None:
    reader = FrameReader(Pieces([(MAX_CONTROL_BYTES).to_bytes(4, "little")]), codec.FROM_CHILD)
    with pytest.raises(trio.BrokenResourceError, match="the limit is"):
        await reader.receive()


async def test_two_writers_do_not_mix_their_frames() -> None:
    ours, theirs = trio.testing.memory_stream_one_way_pair()
    writer, reader = FrameWriter(ours, codec.FROM_CHILD), FrameReader(theirs, codec.FROM_CHILD)
    beats = [Heartbeat(step, "x" * 1000, 0.0) for step in range(20)]
    async with trio.open_nursery() as nursery:
        for beat in beats:
            nursery.start_soon(writer.send, beat)
        received = [await reader.receive() for _ in beats]
    assert sorted(beat.step for beat in received) == list(range(20))
