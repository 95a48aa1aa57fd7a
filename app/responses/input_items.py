"""A request's input to items that everything after it may rely on: each with an id, a type, and what its type needs.

Pure. Refusals name the item and quote nothing of it. Used by app/responses/prepare.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from app.checks import short
from app.limits import Limits
from app.responses.item_ids import ITEM_TYPES, item_id
from app.schemas.responses import InputItem, InputPart, OutputItem
from protocol.errors import BadRequestError

ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_MAX_ID_LENGTH = 256
_MAX_NAME_LENGTH = 256


def input_items(given: str | list[InputItem], limits: Limits) -> list[InputItem]:
    """Raises BadRequestError for the first item that is wrong, for none, and for too many."""
    if isinstance(given, str):
        if not given:
            raise BadRequestError("input must not be empty", param="input")
        part = InputPart("input_text", given)
        return [InputItem(type="message", id=item_id("message"), status="completed", role="user", content=[part])]
    if not given:
        raise BadRequestError("input must not be empty", param="input")
    if len(given) > limits.max_messages:
        raise BadRequestError(f"input has {len(given)} items; at most {limits.max_messages} are taken", param="input")
    items = [_checked(item, f"input[{at}]") for at, item in enumerate(given)]
    ids = [item.id for item in items]
    if len(set(ids)) != len(ids):
        raise BadRequestError("input has two items of the same id", param="input")
    return items


def check_ids(new: Sequence[InputItem], earlier: Sequence[InputItem]) -> None:
    """Raises BadRequestError for an item that is in the conversation already: lists of it are paged by ids."""
    known = {item.id for item in earlier}
    for at, item in enumerate(new):
        if item.id in known:
            raise BadRequestError(
                f"input[{at}].id is that of an earlier item: what goes before is had from previous_response_id, and "
                "need not be sent again",
                param=f"input[{at}].id",
            )


def as_input(item: OutputItem) -> InputItem:
    """What was told, as it looks when it is sent back."""
    return msgspec.convert(msgspec.to_builtins(item), InputItem)


def _checked(item: InputItem, at: str) -> InputItem:
    kind = item.type or "message"
    check = _CHECKS.get(kind)
    if check is None:
        raise BadRequestError(
            f"{at}.type must be one of {', '.join(ITEM_TYPES)}, not {short(kind)}", param=f"{at}.type"
        )
    for name, value, most in (
        ("id", item.id, _MAX_ID_LENGTH),
        ("call_id", item.call_id, _MAX_ID_LENGTH),
        ("approval_request_id", item.approval_request_id, _MAX_ID_LENGTH),
        ("name", item.name, _MAX_NAME_LENGTH),
        ("server_label", item.server_label, _MAX_NAME_LENGTH),
    ):
        if value is not None and len(value) > most:
            raise BadRequestError(
                f"{at}.{name} has {len(value)} characters; at most {most} are taken", param=f"{at}.{name}"
            )
    check(item, at)
    return msgspec.structs.replace(item, type=kind, id=item.id or item_id(kind))


def _check_message(item: InputItem, at: str) -> None:
    _needs(item.role, f"{at}.role")
    if item.role not in ROLES:
        raise BadRequestError(
            f"{at}.role must be one of {', '.join(ROLES)}, not {short(item.role)}", param=f"{at}.role"
        )
    _needs(item.content, f"{at}.content")
    _check_parts(item.content, f"{at}.content")


def _check_reasoning(item: InputItem, at: str) -> None:
    _check_parts(item.content, f"{at}.content")
    _check_parts(item.summary, f"{at}.summary")


def _check_call(item: InputItem, at: str) -> None:
    _needs(item.call_id, f"{at}.call_id")
    _needs(item.name, f"{at}.name")
    _needs(item.arguments, f"{at}.arguments")


def _check_output(item: InputItem, at: str) -> None:
    _needs(item.call_id, f"{at}.call_id")
    _needs(item.output, f"{at}.output")
    _check_parts(item.output, f"{at}.output")


def _check_listing(item: InputItem, at: str) -> None:
    _needs(item.server_label, f"{at}.server_label")
    if item.tools is None and item.error is None:
        _needs(item.tools, f"{at}.tools")


def _check_mcp_call(item: InputItem, at: str) -> None:
    _needs(item.server_label, f"{at}.server_label")
    _needs(item.name, f"{at}.name")
    _needs(item.arguments, f"{at}.arguments")
    _check_parts(item.output, f"{at}.output")


def _check_approval_response(item: InputItem, at: str) -> None:
    _needs(item.approval_request_id, f"{at}.approval_request_id")
    _needs(item.approve, f"{at}.approve")


_CHECKS: dict[str, Callable[[InputItem, str], None]] = {
    "message": _check_message,
    "reasoning": _check_reasoning,
    "function_call": _check_call,
    "function_call_output": _check_output,
    "mcp_list_tools": _check_listing,
    "mcp_call": _check_mcp_call,
    "mcp_approval_request": _check_mcp_call,
    "mcp_approval_response": _check_approval_response,
}


def _needs(value: object, param: str) -> None:
    if value is None:
        raise BadRequestError(f"{param} is missing", param=param)


def _check_parts(content: str | list[InputPart] | None, at: str) -> None:
    if content is None or isinstance(content, str):
        return
    for i, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in (*_TEXTS, "refusal"):
            raise BadRequestError(
                f"{at}[{i}]: this model reads text only; a part of type {short(part.type)} is refused",
                param=f"{at}[{i}]",
            )
        _needs(text, f"{at}[{i}].{'refusal' if part.type == 'refusal' else 'text'}")
