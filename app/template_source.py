"""Chat templates that do not come with the checkpoint: --chat-template, and a request's own where that is trusted."""

from __future__ import annotations

from pathlib import Path

import trio

from app.render import ChatTemplate, Template
from app.services import Services
from protocol.errors import BadRequestError, CheckpointError

_MARKS = ("{{", "{%")


def read_template(given: str) -> str:
    """What --chat-template says: the template itself, on one line, or the file that has it. Raises CheckpointError."""
    if any(mark in given for mark in _MARKS):
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"--chat-template {given}: neither a template nor a file that can be read") from error


async def template_for(services: Services, asked: str | None) -> Template | None:
    """The template of a request: the model's, or the one that it brings where the operator trusts those.

    None if the model has none. Raises BadRequestError for one that is not trusted, too long, or no Jinja.
    """
    if asked is None:
        return services.template
    limits = services.limits
    if not limits.trusts_chat_templates:
        raise BadRequestError(
            "chat_template: requests may not bring their own template (--trust-request-chat-template allows it)",
            param="chat_template",
        )
    if not 1 <= len(asked) <= limits.max_chat_template_length:
        raise BadRequestError(
            f"chat_template must have 1 to {limits.max_chat_template_length} characters, not {len(asked)}",
            param="chat_template",
        )
    try:
        return await trio.to_thread.run_sync(ChatTemplate, asked, services.special_tokens)
    except CheckpointError as error:
        raise BadRequestError(f"chat_template: {error.message}", param="chat_template") from error
