"""Who may speak over tcp: key pairs, addresses that name the key of who has to answer there, and the door's judgement.

Pure; protocol/links.py does with zmq what is decided here. Links within one machine are Unix sockets in a directory of
the user's own, and need none of this.

The keys are Curve25519's, 32 bytes each. A process makes its pair with `protocol.links.make_curve_keys`, or is given it
in its spec over the control pipe: a secret key is never in an argument, an environment, a file or a log.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

KEY_BYTES = 32
ZAP_VERSION = b"1.0"
_KEY = "?key="


class CurveKeys(msgspec.Struct, frozen=True):
    """What one process needs for its tcp links, in both roles: who binds admits, who connects insists."""

    public_key: bytes
    secret_key: bytes
    admitted: list[bytes]
    """Public keys of those who may connect to what this process binds. Nobody else may."""

    def __repr__(self) -> str:
        """Specs are shown in errors and logs, so the secret is not."""
        return f"CurveKeys({self.public_key.hex()}, admits {len(self.admitted)})"


def with_key(endpoint: str, public_key: bytes) -> str:
    """The address of a tcp endpoint at which only the owner of this key can answer: tcp://HOST:PORT?key=HEX."""
    return f"{endpoint}{_KEY}{public_key.hex()}"


def split_address(address: str) -> tuple[str, bytes | None]:
    """The endpoint, and the key of who binds it if the address says so. Raises ValueError for what is no key."""
    endpoint, mark, text = address.partition(_KEY)
    if not mark:
        return endpoint, None
    key = bytes.fromhex(text)
    if len(key) != KEY_BYTES:
        raise ValueError(f"{endpoint}: a key has {KEY_BYTES} bytes, not {len(key)}")
    return endpoint, key


def judge(question: Sequence[bytes], admitted: Collection[bytes]) -> list[bytes]:
    """The answer to one question of the ZeroMQ authentication protocol (RFC 27): may this peer come in?

    A question has version, id, domain, address, identity, mechanism and credentials; for CURVE the credentials are the
    peer's public key, and the handshake has proved that it owns it.
    """
    if len(question) < 2:
        return [ZAP_VERSION, b"", b"500", b"no question", b"", b""]
    version, question_id = question[:2]
    is_known = (
        version == ZAP_VERSION and len(question) == 7 and question[5] == b"CURVE" and question[6] in frozenset(admitted)
    )
    status, text = (b"200", b"OK") if is_known else (b"400", b"this key is not admitted")
    return [ZAP_VERSION, question_id, status, text, b"", b""]
