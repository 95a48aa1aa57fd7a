"""The error body of the OpenAI API, in answers and in error frames of streams."""

from __future__ import annotations

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail
