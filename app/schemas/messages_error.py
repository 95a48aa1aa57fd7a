"""The error body of Anthropic's API, in answers and in error events of streams."""

from __future__ import annotations

from typing import Literal

import msgspec


class MessagesErrorDetail(msgspec.Struct, frozen=True):
    type: str
    message: str


class MessagesErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["error"] = "error"
    error: MessagesErrorDetail
    request_id: str
