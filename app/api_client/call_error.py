"""What keeps a command from getting a server's answer, each in one sentence that says what to do. Used by
app/api_client and the commands."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import msgspec

from app.api_client.place import Place
from app.own_command import own_command
from protocol.errors import TrillmError
from protocol.log_lines import unsafe

MOST_TEXT = 500
UNSAID = "without sending a response"
"""In httpcore2's words for a connection that is closed at once, as by servers that expect TLS."""


class NoAnswerError(TrillmError):
    """Nothing listens there, or it says nothing more, or what it says is not HTTP."""


class RefusedError(TrillmError):
    """The server has answered with a failure; `answered` is the status, or None if an answer that had begun told it."""

    def __init__(self, message: str, answered: int | None = None) -> None:
        super().__init__(message)
        self.answered = answered


def not_connected(place: Place, error: BaseException) -> NoAnswerError:
    causes = list(_behind(error))
    for cause in causes:
        match cause:
            case socket.gaierror():
                return NoAnswerError(f"there is no host named {place.host}: look at --base-url")
            case ssl.SSLCertVerificationError():
                return NoAnswerError(
                    f"the certificate of {place} is not trusted ({cause.verify_message}): name who signed it with "
                    "--ca-certs, or use --insecure"
                )
            case ssl.SSLError():
                return NoAnswerError(f"{place} does not speak TLS as it should ({cause.reason}): is it http:// there?")
            case OSError(errno=errno.EMFILE | errno.ENFILE):
                return NoAnswerError(
                    "no more connections can be opened here: raise `ulimit -n`, or ask for fewer at once"
                )
            case PermissionError():
                return NoAnswerError(f"{place} may not be opened: {cause.strerror}")
            case _:
                pass
    start = own_command("serve")
    return NoAnswerError(f"nothing listens at {place}: start `{start}`, or say where with --base-url")


def not_in_time(place: Place, seconds: float) -> NoAnswerError:
    return NoAnswerError(f"{place} has said nothing for {seconds:g} s")


def not_whole_in_time(place: Place, seconds: float) -> NoAnswerError:
    return NoAnswerError(f"{place} has not answered within {seconds:g} s")


def broken_off(place: Place, error: BaseException) -> NoAnswerError:
    reason = next((str(one) for one in _behind(error) if str(one)), "no reason").rstrip(".")
    hint = "; is it https:// there?" if place.scheme == "http" and UNSAID in reason else ""
    return NoAnswerError(f"{place} broke off: {reason}{hint}")


def refused(place: Place, status: int, body: bytes) -> RefusedError:
    """What the body of an answer tells."""
    said = message_of(body)
    if status == 401:
        if place.key is None:
            return RefusedError(f"{place} asks for a key: {_ways_to_give_a_key(place)}", status)
        return RefusedError(
            f"{place} does not take this key (from {place.key_from}): {said or 'it says no more'}", status
        )
    if said:
        return RefusedError(f"{place} answered {status}: {said}", status)
    if 300 <= status < 400:
        return RefusedError(f"{place} answered {status}, a redirection: give --base-url where it leads to", status)
    return RefusedError(f"{place} answered {status} without a reason", status)


def _ways_to_give_a_key(place: Place) -> str:
    if place.takes_own_keys:
        return "set VLLM_API_KEY, as for the server (or TRILLM_API_KEY, OPENAI_API_KEY, --api-key)"
    return (
        "set OPENAI_API_KEY, or use --api-key (VLLM_API_KEY and TRILLM_API_KEY are for servers of this machine, and "
        "are not sent there)"
    )


def message_of(body: bytes) -> str:
    """In an error body as OpenAI's, vLLM's or another server's; the first line of what is none. One line, bounded."""
    try:
        said: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = body.decode(errors="replace").strip().partition("\n")[0]
    while isinstance(said, dict):
        said = next((said[name] for name in ("error", "message", "detail") if said.get(name)), "")
    return plain(str(said))[:MOST_TEXT]


def ended_by(event: bytes) -> RefusedError:
    """For a chunk of an answer that has an `error`."""
    return RefusedError(f"the server ended the answer: {message_of(event)}")


def plain(text: str) -> str:
    """One line without control characters: what strangers say must not move our terminal, nor turn a line's end to its
    beginning."""
    return " ".join("".join(" " if unsafe(c) else c for c in text).split())


def _behind(error: BaseException) -> Iterator[BaseException]:
    """It and what was behind it; httpcore2 takes causes away, but not contexts."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        if isinstance(seen, BaseExceptionGroup):
            for one in seen.exceptions:
                yield from _behind(one)
        seen = seen.__cause__ or seen.__context__
