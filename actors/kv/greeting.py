"""How two connectors that have just connected make sure of each other: first both prove that they know the key which
connectors share, the reader first, then the owner says who it is. Used on both sides by actors/kv/peers and
peer_service; who has no key learns nothing but a random number.

A proof is of both sides' random numbers and of the role, so that it is of no use another time or the other way round.
What follows is neither encrypted nor signed: between hosts it is for a network of the operator's own.
"""

from __future__ import annotations

import hmac
import secrets

import msgspec

from actors.kv.lending import FetchError
from actors.kv.peer_messages import NOT_READ
from actors.kv.wire import Wire
from protocol.ids import Epoch
from protocol.kv import KV_VERSION, KvLayout
from protocol.kv_ticket import KvTicket

GREETING_SECONDS = 5.0
"""For all of it, with the connecting."""
NONCE_BYTES = 32
MAX_GREETING_BYTES = 1024


class OwnerFacts(msgspec.Struct, frozen=True, array_like=True):
    """Who answers at this address."""

    version: int
    engine_id: str
    kv_epoch: Epoch
    layout_digest: bytes
    frame_bytes: int

    def check(self, ticket: KvTicket, layout: KvLayout) -> None:
        """Whether the blocks of the ticket can lie there, and are what ours are. Raises FetchError."""
        if self.version != KV_VERSION:
            raise FetchError("layout", f"the other connector speaks version {self.version}, and this one {KV_VERSION}")
        if self.engine_id != ticket.engine_id:
            raise FetchError("unreachable", f"{self.engine_id} answers where {ticket.engine_id} was")
        if self.kv_epoch != ticket.kv_epoch:
            raise FetchError("expired", "the connector that gave the ticket has been restarted")
        if (self.layout_digest, self.frame_bytes) != (layout.digest, layout.frame_bytes):
            raise FetchError("layout", "blocks of the other engine are not what ours are")


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag="CHALLENGE"):
    """From the owner."""

    nonce: bytes


class Proof(msgspec.Struct, frozen=True, array_like=True, tag="PROOF"):
    """From the reader."""

    nonce: bytes
    mac: bytes


class Proven(msgspec.Struct, frozen=True, array_like=True, tag="PROVEN"):
    """From the owner: `facts` is an OwnerFacts, and the proof is of it too."""

    facts: bytes
    mac: bytes


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="REFUSED"):
    """From the owner, who ends the connection."""


_CHALLENGE = msgspec.msgpack.Decoder(Challenge)
_PROOF = msgspec.msgpack.Decoder(Proof)
_VERDICT = msgspec.msgpack.Decoder(Proven | Refused)
_FACTS = msgspec.msgpack.Decoder(OwnerFacts)
_encode = msgspec.msgpack.Encoder().encode


async def greet_owner(wire: Wire, key: bytes) -> OwnerFacts:
    """The reader's side. Raises FetchError: "refused", "broken". The caller sets the time."""
    try:
        challenge = _CHALLENGE.decode(await wire.receive(MAX_GREETING_BYTES))
        nonce = secrets.token_bytes(NONCE_BYTES)
        nonces = challenge.nonce + nonce
        if len(challenge.nonce) != NONCE_BYTES:
            raise FetchError("broken", "the other connector's greeting is none")
        await wire.send(_encode(Proof(nonce, _mac(key, b"reader", nonces))))
        verdict = _VERDICT.decode(await wire.receive(MAX_GREETING_BYTES))
        if isinstance(verdict, Refused):
            raise FetchError("refused", "the other connector has another key")
        if not hmac.compare_digest(verdict.mac, _mac(key, b"owner", nonces, verdict.facts)):
            raise FetchError("refused", "the other connector does not know our key")
        return _FACTS.decode(verdict.facts)
    except NOT_READ as error:
        raise FetchError("broken", f"the other connector's greeting is none: {error}") from error


async def greet_reader(wire: Wire, key: bytes, facts: OwnerFacts) -> None:
    """The owner's side. Raises FetchError: "refused", "broken". The caller sets the time."""
    challenge = secrets.token_bytes(NONCE_BYTES)
    await wire.send(_encode(Challenge(challenge)))
    try:
        proof = _PROOF.decode(await wire.receive(MAX_GREETING_BYTES))
    except NOT_READ as error:
        raise FetchError("broken", f"a greeting that is none: {error}") from error
    nonces = challenge + proof.nonce
    if len(proof.nonce) != NONCE_BYTES or not hmac.compare_digest(proof.mac, _mac(key, b"reader", nonces)):
        await wire.send(_encode(Refused()))
        raise FetchError("refused", "somebody who does not know our key")
    encoded = _encode(facts)
    await wire.send(_encode(Proven(encoded, _mac(key, b"owner", nonces, encoded))))


def _mac(key: bytes, role: bytes, nonces: bytes, facts: bytes = b"") -> bytes:
    """The nonces have a fixed length, so that no two sets of words are the same bytes."""
    return hmac.digest(key, b"trillm kv " + role + b"\0" + nonces + facts, "sha256")
