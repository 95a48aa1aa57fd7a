"""Tickets: for whoever is to have blocks of ours, where they are. Used by actors/kv/peers.

A client brings them, so that no address counts that is not signed with the key which connectors share. The exception
is the operator's list of allowed peers, for tickets that somebody else's router has made.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Collection

import msgspec

from actors.kv.lending import FetchError
from protocol.errors import BadRequestError
from protocol.kv_ticket import MAC_BYTES, MAX_TICKET_BYTES, KvTicket, read_ticket
from protocol.net_address import netloc

GRACE_SECONDS = 60.0
"""That the clocks of two hosts may differ. The lease decides; the ticket's time only saves asking in vain."""
PURPOSE = b"trillm kv ticket\0"
"""So that nothing else that is signed with the key can be taken for a ticket."""


def seconds_from_now(seconds: float) -> float:
    """For `expires_at`."""
    return time.time() + seconds


def sign(ticket: KvTicket, key: bytes) -> bytes:
    """Raises ValueError if it gets longer than tickets may be."""
    words = msgspec.msgpack.encode(ticket)
    if MAC_BYTES + len(words) > MAX_TICKET_BYTES:
        raise ValueError(f"a KV ticket has at most {MAX_TICKET_BYTES} bytes, not {MAC_BYTES + len(words)}")
    return _mac(words, key) + words


def check(signed: bytes, key: bytes, allowed_peers: Collection[str]) -> KvTicket:
    """Its words, without what must not be believed. Raises FetchError: "refused" or "expired"."""
    try:
        ticket = read_ticket(signed)
    except BadRequestError as error:
        raise FetchError("refused", error.message) from error
    if not hmac.compare_digest(signed[:MAC_BYTES], _mac(signed[MAC_BYTES:], key)):
        if ticket.host is None or netloc(ticket.host, ticket.port) not in allowed_peers:
            raise FetchError(
                "refused", "the ticket is not signed with our key, nor is its address one of those allowed"
            )
        ticket = msgspec.structs.replace(ticket, path=None)  # the list is about host and port
    if ticket.expires_at + GRACE_SECONDS < time.time():
        raise FetchError("expired", f"the ticket has expired {time.time() - ticket.expires_at:.0f} s ago")
    return ticket


def _mac(words: bytes, key: bytes) -> bytes:
    return hmac.digest(key, PURPOSE + words, "sha256")
