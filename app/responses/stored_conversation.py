"""Stored responses that go on from each other, as one conversation. Pure; long ones take their time, so that
app/responses/store.py has it done in a worker thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from app.responses.stored import StoredResponse
from app.schemas.responses import InputItem
from protocol.errors import BadRequestError


class _Kept(msgspec.Struct):
    output: list[InputItem]


class _RawKept(msgspec.Struct):
    output: list[msgspec.Raw]


_ITEMS = msgspec.json.Decoder(list[InputItem])
_KEPT = msgspec.json.Decoder(_Kept)
_RAW_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_RAW_KEPT = msgspec.json.Decoder(_RawKept)


def conversation(chain: Sequence[StoredResponse]) -> list[InputItem]:
    """Up to the end of the last one. Raises BadRequestError."""
    last = chain[-1]
    if last.is_under_way or last.status == "failed":
        raise BadRequestError(
            f"previous_response_id: the response {last.id!r} is {last.status}, and cannot be gone on from",
            param="previous_response_id",
        )
    items: list[InputItem] = []
    for row in chain:
        items += _ITEMS.decode(row.input_items)
        items += _KEPT.decode(row.response).output
    return items


def whole_input(chain: Sequence[StoredResponse]) -> list[msgspec.Raw]:
    """Up to the input of the last one, which has to be there, as it was sent and told."""
    items: list[msgspec.Raw] = []
    for row in chain[:-1]:
        items += _RAW_ITEMS.decode(row.input_items)
        items += _RAW_KEPT.decode(row.response).output
    return items + _RAW_ITEMS.decode(chain[-1].input_items)
