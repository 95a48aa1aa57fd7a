"""ZMQ sockets as trio channels: the only file that imports zmq.

An actor's main never sees a socket. It is given an `Inbox` and an `Outbox`, and a trio memory channel is an exact fake
of either. Sending never blocks: no link has a high-water mark, and what bounds the queues is the admission of requests
at the door and the fact that a link lives no longer than the incarnation (epoch) it leads to: when that dies the link
is closed, and what was still queued is gone with it.

pyzmq has no support for trio, and a ZMQ socket's file descriptor is edge-triggered: readable only until *any* call on
the socket has processed the pending commands. Therefore every receive first reads EVENTS, then takes or waits, with no
checkpoint in between; and a send on a socket that another task waits for passes a swallowed edge on.

Addresses are ipc:// within a machine. tcp:// is spoken only encrypted, and only with those whose keys are known
(protocol/curve.py); without keys it is refused.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar, final

import msgspec
import trio
import zmq
from zmq.utils import z85

from protocol.codec import Codec
from protocol.curve import KEY_BYTES, CurveKeys, judge, split_address, with_key

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A peer that sends a larger frame is disconnected by ZMQ, without a word to either side."""


ZAP_ADDRESS = "inproc://zeromq.zap.01"
"""Where libzmq asks whom it may let in (RFC 27)."""
HANDSHAKE_MS = 5000
"""A tcp peer that has not proved by then who it is, is disconnected."""
RECONNECT_MAX_MS = 2000

logger = logging.getLogger("trillm.links")


class UnprotectedLinkError(PermissionError):
    """A tcp link without keys: anybody who reaches the port could speak to it."""


class FrameTooLargeError(Exception):
    """The message was not sent: the link would have lost it, and the connection with it."""


def send_in_parts(items: list[T], send: Callable[[list[T]], None], shorten: Callable[[T], T]) -> None:
    """Send a message of many items; where it is too large, in several, and what is too large alone, shortened."""
    try:
        send(items)
    except FrameTooLargeError:
        if len(items) == 1:
            send([shorten(items[0])])
            return
        half = len(items) // 2
        send_in_parts(items[:half], send, shorten)
        send_in_parts(items[half:], send, shorten)


class Inbox(Protocol[T_co]):
    """The receiving half of a link. A `trio.MemoryReceiveChannel` is one."""

    async def receive(self) -> T_co:
        """The next message. Cancelled, it loses none. Raises EndOfChannel or ClosedResourceError."""

    def receive_nowait(self) -> T_co:
        """The next message if it is here, else raises trio.WouldBlock."""


class Outbox(Protocol[T_contra]):
    """The sending half of a link. A `trio.MemorySendChannel` without bound is one."""

    def send_nowait(self, value: T_contra) -> None:
        """Queue a message. Raises ClosedResourceError or BrokenResourceError once the link is closed."""


async def receive_batch(inbox: Inbox[T], limit: int = 256) -> list[T]:
    """The next message and all that are here already, at most `limit`: one wake-up for a burst."""
    batch = [await inbox.receive()]
    try:
        while len(batch) < limit:
            batch.append(inbox.receive_nowait())
    except (trio.WouldBlock, trio.EndOfChannel):
        pass
    return batch


class LinkStatistics(msgspec.Struct, frozen=True):
    """What passed through a link."""

    address: str
    frames: int
    garbage: int
    """Frames that were not of the link's union; they were dropped."""


class _Socket:
    """A ZMQ socket that one task may wait for, while others in the same thread send on it."""

    def __init__(self, raw: zmq.Socket[bytes], address: str, open_sockets: set[_Socket]) -> None:
        self._raw = raw
        self._open_sockets = open_sockets
        open_sockets.add(self)
        self._fd = raw.fileno()
        self._waiting = False
        self.address = address

    def send_nowait(self, frame: bytes) -> None:
        if self._raw.closed:
            raise trio.ClosedResourceError
        if len(frame) > MAX_FRAME_BYTES:
            raise FrameTooLargeError(f"a frame of {len(frame)} bytes; the limit is {MAX_FRAME_BYTES}")
        self._raw.send(frame, zmq.DONTWAIT)
        if self._waiting and self._readable():
            trio.lowlevel.notify_closing(self._fd)  # our send swallowed the edge that the waiting task needs

    def receive_nowait(self) -> bytes:
        if not self._readable():  # asking costs a tenth of the exception that a vain try raises
            raise trio.WouldBlock
        try:
            return self._raw.recv(zmq.DONTWAIT)
        except zmq.Again:
            raise trio.WouldBlock from None

    async def receive(self) -> bytes:
        if self._readable():
            await trio.lowlevel.checkpoint()  # before the operation: a message taken is a message returned
        while True:
            try:
                return self.receive_nowait()
            except trio.WouldBlock:
                await self._wait()

    async def _wait(self) -> None:
        if self._waiting:
            raise trio.BusyResourceError("another task is receiving from this link")
        self._waiting = True
        try:
            await trio.lowlevel.wait_readable(self._fd)
        except trio.ClosedResourceError:
            pass  # woken by `send_nowait`, or by `close`; a cancel scope for each wait would cost more
        finally:
            self._waiting = False
        if self._raw.closed:
            raise trio.ClosedResourceError

    def _readable(self) -> bool:
        if self._raw.closed:
            raise trio.ClosedResourceError
        events = self._raw.getsockopt(zmq.EVENTS)
        assert isinstance(events, int)
        return bool(events & zmq.POLLIN)

    def close(self) -> None:
        if not self._raw.closed:
            if self._waiting:
                trio.lowlevel.notify_closing(self._fd)
            self._raw.close(linger=0)
            self._open_sockets.discard(self)


@final
class ReceiveLink(Generic[T], trio.abc.ReceiveChannel[T]):
    """PULL or SUB. Frames that cannot be decoded are counted and dropped: they cost nobody else anything."""

    def __init__(self, socket: _Socket, codec: Codec[T]) -> None:
        self._socket = socket
        self._codec = codec
        self._frames = 0
        self._garbage = 0

    async def receive(self) -> T:
        while True:
            frame = await self._socket.receive()
            try:
                return self._decode(frame)
            except msgspec.DecodeError:
                self._garbage += 1

    def receive_nowait(self) -> T:
        while True:
            frame = self._socket.receive_nowait()
            try:
                return self._decode(frame)
            except msgspec.DecodeError:
                self._garbage += 1

    def _decode(self, frame: bytes) -> T:
        self._frames += 1
        return self._codec.decode(frame)

    @property
    def address(self) -> str:
        """Where others connect to, if this end was bound: with the port that was taken, and our key."""
        return self._socket.address

    def statistics(self) -> LinkStatistics:
        return LinkStatistics(self._socket.address, self._frames, self._garbage)

    def close(self) -> None:
        """Idempotent; wakes a waiting receiver with ClosedResourceError."""
        self._socket.close()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


@final
class SendLink(Generic[T], trio.abc.SendChannel[T]):
    """PUSH. Messages to a peer that is not there yet wait for it; after `close` they are gone."""

    def __init__(self, socket: _Socket, codec: Codec[T]) -> None:
        self._socket = socket
        self._codec = codec

    def send_nowait(self, value: T) -> None:
        self._socket.send_nowait(self._codec.encode(value))

    async def send(self, value: T) -> None:
        await trio.lowlevel.checkpoint()
        self.send_nowait(value)

    def close(self) -> None:
        self._socket.close()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


@final
class PublishLink(Generic[T]):
    """XPUB to one subscriber: an Outbox of messages, and an Inbox of the subscriber's coming and going.

    `receive` gives True when a subscription arrives and False when it goes (also when the subscriber's process dies).
    What is sent while nobody is subscribed is dropped by ZMQ.
    """

    EVENTS: Final = {b"\x01": True, b"\x00": False}

    def __init__(self, socket: _Socket, codec: Codec[T]) -> None:
        self._socket = socket
        self._codec = codec

    @property
    def address(self) -> str:
        """As a ReceiveLink's."""
        return self._socket.address

    def send_nowait(self, value: T) -> None:
        self._socket.send_nowait(self._codec.encode(value))

    async def receive(self) -> bool:
        while (frame := await self._socket.receive()) not in self.EVENTS:
            pass  # not of our subscriber, who subscribes to everything with an empty topic
        return self.EVENTS[frame]

    def receive_nowait(self) -> bool:
        while (frame := self._socket.receive_nowait()) not in self.EVENTS:
            pass
        return self.EVENTS[frame]

    def close(self) -> None:
        self._socket.close()


@final
class Links:
    """Makes the links of one process. Binding or connecting raises OSError at once, and UnprotectedLinkError where an
    address would need keys that there are not."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], curve: CurveKeys | None = None) -> None:
        self._context = context
        self._curve = curve
        self._open: set[_Socket] = set()

    def close(self) -> None:
        """Close every link that is still open, without lingering."""
        for socket in list(self._open):
            socket.close()

    def pull(self, address: str, codec: Codec[T]) -> ReceiveLink[T]:
        """Binds: many senders, one receiver."""
        return ReceiveLink(self._socket(zmq.PULL, address, bind=True), codec)

    def push(self, address: str, codec: Codec[T]) -> SendLink[T]:
        """Connects to exactly one receiver: PUSH would deal its messages out over several."""
        return SendLink(self._socket(zmq.PUSH, address, bind=False), codec)

    def publish(self, address: str, codec: Codec[T]) -> PublishLink[T]:
        """Binds, for one subscriber."""
        return PublishLink(self._socket(zmq.XPUB, address, bind=True), codec)

    def subscribe(self, address: str, codec: Codec[T]) -> ReceiveLink[T]:
        """Connects and subscribes to everything. A task must be receiving, else ZMQ does not even reconnect."""
        return ReceiveLink(self._socket(zmq.SUB, address, bind=False), codec)

    def _socket(self, kind: int, address: str, *, bind: bool) -> _Socket:
        raw = self._context.socket(kind)
        try:
            raw.setsockopt(zmq.LINGER, 0)
            raw.setsockopt(zmq.SNDHWM, 0)
            raw.setsockopt(zmq.RCVHWM, 0)
            raw.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
            raw.setsockopt(zmq.RECONNECT_IVL, 20)
            if kind == zmq.XPUB:
                raw.setsockopt(zmq.XPUB_VERBOSE, 1)
            if kind == zmq.SUB:
                raw.setsockopt(zmq.SUBSCRIBE, b"")
            endpoint = address if address.startswith("ipc://") else self._protect(raw, address, bind=bind)
            if bind:
                raw.bind(endpoint)
                address = address if address.startswith("ipc://") else self._bound_address(raw)
            else:
                raw.connect(endpoint)
        except zmq.ZMQError as error:
            raw.close(linger=0)
            raise OSError(error.errno, f"{address}: {error.strerror}") from error
        except BaseException:
            raw.close(linger=0)  # whatever it is: the end of the context waits without end for a socket that is open
            raise
        return _Socket(raw, address, self._open)

    def _protect(self, raw: zmq.Socket[bytes], address: str, *, bind: bool) -> str:
        """Make a socket speak CURVE only; the endpoint of its address."""
        if not address.startswith("tcp://"):
            raise UnprotectedLinkError(f"{address}: links are ipc:// or, with keys, tcp://")
        curve = self._curve
        if curve is None:
            raise UnprotectedLinkError(f"{address}: a tcp link needs keys, and this process has been given none")
        try:
            endpoint, server_key = split_address(address)
        except ValueError as error:
            raise UnprotectedLinkError(f"the address of a tcp link has a key that is none: {error}") from error
        raw.setsockopt(zmq.CURVE_PUBLICKEY, curve.public_key)
        raw.setsockopt(zmq.CURVE_SECRETKEY, curve.secret_key)
        raw.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        raw.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        raw.setsockopt(zmq.TCP_KEEPALIVE, 1)
        raw.setsockopt(zmq.IPV6, int("[" in endpoint))
        if bind:
            raw.setsockopt(zmq.CURVE_SERVER, 1)
            raw.setsockopt(zmq.ZAP_DOMAIN, b"trillm")
            raw.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody at the door: nobody comes in
        elif server_key is None:
            raise UnprotectedLinkError(f"{endpoint}: the address does not say whose key has to answer there")
        else:
            raw.setsockopt(zmq.CURVE_SERVERKEY, server_key)
        return endpoint

    def _bound_address(self, raw: zmq.Socket[bytes]) -> str:
        assert self._curve is not None, "only tcp addresses come here"
        endpoint = raw.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return with_key(endpoint.rstrip(b"\0").decode(), self._curve.public_key)


def make_curve_keys(admitted: Sequence[bytes] = ()) -> CurveKeys:
    """A fresh pair, for a process that lets these in."""
    public, secret = zmq.curve_keypair()
    return CurveKeys(z85.decode(public), z85.decode(secret), list(admitted))


def derive_curve_keys(secret: bytes, of: str, admitted: Sequence[str] = ()) -> CurveKeys:
    """The pair of whoever is called so among those who know this secret, and lets these of them in. Everybody who
    knows it can make the pairs of all."""

    def secret_key(name: str) -> bytes:
        return hashlib.blake2b(name.encode(), key=hashlib.sha512(secret).digest(), digest_size=KEY_BYTES).digest()

    def public_key(name: str) -> bytes:
        return z85.decode(zmq.curve_public(z85.encode(secret_key(name))))

    return CurveKeys(public_key(of), secret_key(of), [public_key(name) for name in admitted])


def _keep_door(door: zmq.Socket[bytes], curve: CurveKeys) -> None:
    """A thread's main: answers libzmq's questions until the context ends. A task could not: a socket may be bound and
    connected to before any task runs, and each process's loop is busy with better things."""
    refused = 0
    with door:
        try:
            while True:
                question = door.recv_multipart()
                answer = judge(question, curve.admitted)
                door.send_multipart(answer)
                if answer[2] != b"200":
                    refused += 1
                    if refused & (refused - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
                        who = question[3].decode(errors="replace") if len(question) > 3 else "?"
                        logger.warning("a peer at %s was refused: its key is not admitted (number %s)", who, refused)
        except zmq.ContextTerminated:
            return


@contextmanager
def open_links(curve: CurveKeys | None = None) -> Iterator[Links]:
    """The process's ZMQ context; on leaving, every link that is still open is closed. With keys, also over tcp."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    links = Links(context, curve)
    keeper: threading.Thread | None = None
    if curve is not None:
        door = context.socket(zmq.REP)
        door.setsockopt(zmq.LINGER, 0)
        door.bind(ZAP_ADDRESS)
        keeper = threading.Thread(target=_keep_door, args=(door, curve), name="door")
        keeper.start()
    try:
        yield links
    finally:
        links.close()
        context.term()
        if keeper is not None:
            keeper.join()
