"""`kv_transfer_params`, vLLM's field by which a proxy has one server compute a prompt and another go on with it.

The first is asked with do_remote_decode, and answers with what the second is to be given. Where that one fetches from,
nobody reads from the fields that name hosts and ports: only the ticket counts, which the first server has signed. Used
by app/prompts.py and app/answer.py.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec
from attrs import frozen

from protocol.errors import BadRequestError, NotImplementedHereError
from protocol.kv import KvParams
from protocol.kv_ticket import MAX_TICKET_BYTES, read_ticket

FIELD = "kv_transfer_params"
MAX_FIELDS = 32


class AskedTransfer(msgspec.Struct, frozen=True):
    """What is read of it. All else, as vLLM's block ids, may be there."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    ticket: str | None = None
    """As it was told, in URL-safe base64."""


@frozen
class KvPolicy:
    """What of it this server does."""

    has_connectors: bool = False
    must_load: bool = False
    """A request whose ticket brings nothing fails, instead of being computed."""


def kv_params(asked: dict[str, Any] | None, num_choices: int, policy: KvPolicy) -> KvParams | None:
    """None: its KV is of no concern to others. Raises BadRequestError for what cannot be meant, and
    NotImplementedHereError where there are no connectors."""
    if not asked:
        return None
    if len(asked) > MAX_FIELDS:
        raise BadRequestError(f"{FIELD} has {len(asked)} fields; at most {MAX_FIELDS} are taken", param=FIELD)
    try:
        transfer = msgspec.convert(asked, AskedTransfer)
    except msgspec.ValidationError as error:
        raise BadRequestError(f"{FIELD}: {error}", param=FIELD) from error
    if not (transfer.do_remote_decode or transfer.do_remote_prefill):
        return None
    if not policy.has_connectors:
        raise NotImplementedHereError(
            f"{FIELD} is not supported: this server has no KV connector (--kv-transfer-config)", param=FIELD
        )
    if transfer.do_remote_decode:
        if transfer.do_remote_prefill:
            raise BadRequestError(f"{FIELD}: do_remote_decode and do_remote_prefill exclude each other", param=FIELD)
        if num_choices > 1:
            raise BadRequestError(
                f"{FIELD}: do_remote_decode is for one prompt and n=1, not for {num_choices} choices", param=FIELD
            )
        return KvParams(exports=True)
    return KvParams(_ticket(transfer), must_load=policy.must_load)


def _ticket(transfer: AskedTransfer) -> bytes:
    """Whether it is believed the connector says, which knows the key."""
    if transfer.ticket is None:
        raise BadRequestError(
            f"{FIELD}: do_remote_prefill needs the ticket that the prefilling server has answered with", param=FIELD
        )
    if len(transfer.ticket) > 2 * MAX_TICKET_BYTES:
        raise BadRequestError(
            f"{FIELD}: ticket has {len(transfer.ticket)} characters, and at most {2 * MAX_TICKET_BYTES} are taken",
            param=FIELD,
        )
    try:
        ticket = base64.urlsafe_b64decode(transfer.ticket)
        read_ticket(ticket)
    except (binascii.Error, ValueError, BadRequestError) as error:
        raise BadRequestError(f"{FIELD}: ticket is none: {error}", param=FIELD) from error
    return ticket


def told_transfer(ticket: bytes, request_id: str) -> dict[str, Any] | None:
    """What the server that is to go on is to be given: vLLM's fields, and the ticket. None where nothing was kept."""
    if not ticket:
        return None
    told = read_ticket(ticket)
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": told.engine_id,
        "remote_request_id": request_id,
        "remote_host": told.host,
        "remote_port": told.port,
        "remote_block_ids": [],
        "remote_num_tokens": told.num_tokens,
        "remote_blocks_expiry_time": told.expires_at,
        "tp_size": 1,
        "ticket": base64.urlsafe_b64encode(ticket).decode(),
    }
