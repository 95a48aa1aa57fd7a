"""What each of two servers is sent of one request, by vLLM's convention, and which requests one server has to answer
alone. Pure; used by app/proxy/forwarding.py.

Bodies are read one level deep: what the proxy need not know goes on as it was spelt.
"""

from __future__ import annotations

from typing import Any, TypeVar, final

import msgspec

from app.body import nests_within
from app.kv_transfer import FIELD
from protocol.errors import BadRequestError

T = TypeVar("T")

Fields = dict[str, msgspec.Raw]
"""A body's fields, as they were sent."""

FIELDS = msgspec.json.Decoder(Fields)
ASKED_FIRST = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
NOT_FOR_PREFILL = ("stream_options", "min_tokens")
"""One token is computed there, and told in one piece."""
MOST_LEVELS = 32
"""Of what a prefill server tells. Block ids are in lists in lists."""
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


class PrefillAnswer(msgspec.Struct, frozen=True):
    """What is read of a prefill server's answer."""

    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


class Complaint(msgspec.Struct, frozen=True):
    """What is read of an error."""

    message: str = ""
    param: str | None = None


class RefusedAnswer(msgspec.Struct, frozen=True):
    error: Complaint


_ENCODER = msgspec.json.Encoder()
_PREFILL_ANSWER = msgspec.json.Decoder(PrefillAnswer)
_REFUSED_ANSWER = msgspec.json.Decoder(RefusedAnswer)


@final
class Handover:
    """Of one request for an answer."""

    def __init__(self, path: str, fields: Fields) -> None:
        """Raises BadRequestError for a body with kv_transfer_params: where KV is fetched from is not the client's to
        say."""
        self._fields = {name: value for name, value in fields.items() if name != FIELD}
        self._is_chat = path == CHAT
        if not _is_absent(fields, FIELD):
            raise BadRequestError(f"{FIELD} is for this proxy to set, and may not be sent to it", param=FIELD)

    @property
    def model(self) -> str | None:
        """The name that is asked for, if it is one."""
        return _read(self._fields, "model", str)

    def goes_by_two(self, min_bytes: int) -> bool:
        """Whether a prefill server is to compute its prompt. Not what has several answers or prompts, or tells of the
        prompt's tokens, for which they have to be computed where it is told; what is cut to fit its answer, which is
        shorter there; and what has fewer bytes than that."""
        fields = self._fields
        return (
            self._num_bytes() >= min_bytes
            and _is_at_most_one(fields, "n")
            and _is_at_most_one(fields, "best_of")
            and all(_is_absent(fields, name) for name in ("prompt_logprobs", "truncate_prompt_tokens"))
            and (_is_absent(fields, "echo") or _read(fields, "echo", bool) is False)
            and (self._is_chat or _is_one_prompt(fields.get("prompt")))
        )

    def for_prefill(self) -> bytes:
        kept: dict[str, Any] = {name: value for name, value in self._fields.items() if name not in NOT_FOR_PREFILL}
        limits = {name: 1 for name in ("max_tokens", "max_completion_tokens") if name in self._fields}
        return _ENCODER.encode(kept | {"max_tokens": 1} | limits | {"stream": False, FIELD: ASKED_FIRST})

    def for_decode(self, transfer: msgspec.Raw | None) -> bytes:
        """`transfer`: what the prefill server has told. None: the prompt is computed there."""
        return _ENCODER.encode(self._fields if transfer is None else self._fields | {FIELD: transfer})

    def _num_bytes(self) -> int:
        return sum(len(name) + memoryview(value).nbytes for name, value in self._fields.items())


def read_transfer(body: bytes) -> msgspec.Raw | None:
    """What the decode server is to be given, out of a prefill server's answer. None: nothing was kept. Raises
    msgspec.DecodeError for what is no such answer: the decode server would refuse it, and not its client's doing."""
    try:
        transfer = _PREFILL_ANSWER.decode(body).kv_transfer_params
        told = bytes(transfer)  # the rest of the answer may go
        told.decode()
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    if _is_null(transfer):
        return None
    if told[:1] != b"{" or not nests_within(told, MOST_LEVELS):
        raise msgspec.DecodeError(f"{FIELD} is no object, or nests more than {MOST_LEVELS} levels deep")
    return msgspec.Raw(told)


def complaint_of_transfer(body: bytes) -> str | None:
    """What a decode server says against kv_transfer_params, which its client has not sent. None: its refusal is about
    something else."""
    try:
        complaint = _REFUSED_ANSWER.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return complaint.message if complaint.param == FIELD else None


def _read(fields: Fields, name: str, kind: type[T]) -> T | None:
    """None for what is absent, or of another type: the server that it is sent to will say so."""
    try:
        return msgspec.json.decode(fields[name], type=kind)
    except (KeyError, msgspec.DecodeError):
        return None


def _is_at_most_one(fields: Fields, name: str) -> bool:
    return _is_absent(fields, name) or _read(fields, name, int) == 1


def _is_absent(fields: Fields, name: str) -> bool:
    return name not in fields or _is_null(fields[name])


def _is_null(value: msgspec.Raw) -> bool:
    return bytes(memoryview(value)[:16]).strip() == b"null"


def _is_one_prompt(prompt: msgspec.Raw | None) -> bool:
    """A text, a list of token ids, or a list of one of these."""
    if prompt is None:
        return False
    begin = bytes(memoryview(prompt)[:64]).translate(None, b" \t\r\n")
    if begin[:1] == b'"' or (begin[:1] == b"[" and begin[1:2].isdigit()):
        return True
    try:
        [inner] = msgspec.json.decode(prompt, type=tuple[msgspec.Raw])  # stops at the second
    except msgspec.DecodeError:
        return False
    return bytes(memoryview(inner)[:1]) in (b'"', b"[")
