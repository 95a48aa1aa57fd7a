"""A request's body to a struct, or a refusal that names the field. The only reader of bodies.

Nesting is bounded before anything is decoded, so that no decoder, template or grammar compiler meets a deep tree.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TypeVar

import msgspec
import trio
from quart import Request

from app.drain import Drain
from app.limits import Limits
from protocol.errors import BadRequestError, UnsupportedMediaTypeError

T = TypeVar("T")

_ALL = bytes(range(256))
_NO_BRACKETS = _ALL.translate(None, b'[]{}"')
_INLINE_BYTES = 256 * 2**10
"""Bigger bodies are decoded in a worker thread."""
_MAX_BRACKETS = 400_000
"""No honest body has more; counting the depth of more would take seconds."""
_MAX_KEYS = 200_000
_MAX_VALUES = 2**20
"""Decoding holds the interpreter's lock, so that many values would hold up everybody. Token ids are most."""
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_AT = re.compile(r"^(?P<what>.*?) - at `\$\.?(?P<path>.*)`$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")


async def read_body(request: Request, decoder: msgspec.json.Decoder[T], limits: Limits, drain: Drain) -> T:
    """The decoded body.

    Raises UnsupportedMediaTypeError, BadRequestError, UnavailableError if the server drains before the body is there,
    and werkzeug's errors for a body that is too large (found while it comes in) or too slow.
    """
    kind = request.mimetype
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMediaTypeError(f"Content-Type must be application/json, not {kind[:100] or 'absent'}")
    data = await drain.unless_begun(partial(_received, request))
    if len(data) <= _INLINE_BYTES:
        return decode_body(data, decoder, limits.max_json_depth)
    return await trio.to_thread.run_sync(decode_body, data, decoder, limits.max_json_depth)


async def _received(request: Request) -> bytes:
    return await request.get_data(cache=False, as_text=False, parse_form_data=False)


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T], max_depth: int) -> T:
    """Raises BadRequestError whose message is short whatever the body is."""
    if not nests_within(body, max_depth):
        raise BadRequestError(
            f"The body's JSON is nested more than {max_depth} levels deep, or has more than {_MAX_BRACKETS // 2} lists "
            "and objects, or brackets that do not match"
        )
    if has_more(body, b":", _MAX_KEYS):
        raise BadRequestError(f"The body's JSON has more than {_MAX_KEYS} keys")
    if has_more(body, b",", _MAX_VALUES):
        raise BadRequestError(f"The body's JSON has more than {_MAX_VALUES} values")
    try:
        body.decode()  # also what lies in ignored fields has to be UTF-8
        return decoder.decode(body)
    except UnicodeDecodeError as error:
        raise BadRequestError(f"The body is not UTF-8 (byte {error.start})") from error
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from error
    except msgspec.DecodeError as error:
        raise BadRequestError(f"The body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise BadRequestError("The body's JSON is nested too deep") from error


def nests_within(body: bytes, max_depth: int) -> bool:
    """Whether brackets nest at most that deep, and are not absurdly many.

    A few passes over the bytes, each at about the speed of memory.
    """
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return True
    brackets = _outside_strings(body, _NO_BRACKETS).translate(_ONE_KIND)
    if len(brackets) > _MAX_BRACKETS:
        return False
    for _ in range(max_depth):
        if not brackets:
            return True
        left = brackets.replace(b"[]", b"")  # every innermost pair
        if len(left) == len(brackets):
            return False
        brackets = left
    return not brackets


def has_more(body: bytes, mark: bytes, limit: int) -> bool:
    """Whether a mark (a colon or a comma) occurs more often than that outside strings."""
    return body.count(mark) > limit and how_often(body, mark) > limit


def how_often(body: bytes, mark: bytes) -> int:
    """How often a mark occurs outside strings."""
    return _outside_strings(body, _ALL.translate(None, mark + b'"')).count(mark)


def _outside_strings(body: bytes, ignored: bytes) -> bytes:
    """What is outside strings, without the ignored bytes."""
    # Without escapes a quote begins or ends a string; two side by side change nothing for what is around them.
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, ignored).replace(b'""', b"")
    return b"".join(marks.split(b'"')[::2])


def _refusal(text: str) -> BadRequestError:
    if match := _AT.match(text):
        param = match["path"] or None
        what = match["what"]
    else:
        param, what = None, text
    if missing := _MISSING.search(what):
        param = f"{param}.{missing['name']}" if param else missing["name"]
    return BadRequestError(f"{param}: {what}" if param else f"The body: {what}", param=param)
