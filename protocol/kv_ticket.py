"""What a KV ticket says, for who only passes it on: the app, which tells its clients. Signed and checked in
actors/kv/ticket.py: what is read here anybody may have written.
"""

from __future__ import annotations

import msgspec

from protocol.errors import BadRequestError
from protocol.ids import Epoch
from protocol.kv import KV_VERSION

MAX_TICKET_BYTES = 2048
MAC_BYTES = 32
"""HMAC-SHA256, in front of what it is of."""


class KvTicket(msgspec.Struct, frozen=True, array_like=True):
    """Where blocks of keys and values lie, and until when."""

    version: int
    """KV_VERSION of who made it."""
    engine_id: str
    kv_epoch: Epoch
    """Of the connector that has them: another incarnation has not."""
    lease_id: str
    layout_digest: bytes
    num_blocks: int
    block_size: int
    """Tokens."""
    expires_at: float
    """By the wall clock, seconds since 1970. Only a hint: what counts is the lease, by its owner's clock."""
    host: str | None = None
    """Where the connector hears over TCP, from everywhere; None: it does not."""
    port: int = 0
    path: str | None = None
    """Its Unix socket, on the machine with `boot_id`; None: there is none."""
    boot_id: str = ""

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size


def read_ticket(ticket: bytes) -> KvTicket:
    """Its words, whoever they are from. Raises BadRequestError if they are none, or of another version."""
    if len(ticket) > MAX_TICKET_BYTES:
        raise BadRequestError(f"a KV ticket has at most {MAX_TICKET_BYTES} bytes, not {len(ticket)}")
    try:
        read = msgspec.msgpack.decode(ticket[MAC_BYTES:], type=KvTicket)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"this is no KV ticket: {error}") from error
    if read.version != KV_VERSION:
        raise BadRequestError(f"the KV ticket is of version {read.version}, and this server speaks {KV_VERSION}")
    return read
