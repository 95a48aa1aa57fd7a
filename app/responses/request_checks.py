"""What of a request of the Responses API can be wrong by itself, beside what all chats share. Pure.

Used by app/responses/prepare.py, and by app/field_bounds.py to tell it.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.checks import ranged, short
from app.limits import Limits
from app.responses.chat_fields import LOGPROBS
from app.schemas.responses import ResponsesRequest
from protocol.errors import BadRequestError

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES = ("auto", "concise", "detailed")
VERBOSITIES = ("low", "medium", "high")
TRUNCATIONS = ("auto", "disabled")
INCLUDABLE = (
    *(LOGPROBS, "reasoning.encrypted_content", "message.input_image.image_url"),
    *("code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results"),
    *("web_search_call.action.sources", "web_search_call.results"),
)
"""Only the first adds anything here; the others are of things that no response of ours has."""
MAX_PAIRS = 16
MAX_KEY_LENGTH = 64
MAX_VALUE_LENGTH = 512
MAX_LABEL_LENGTH = 512
MAX_TOOL_CALLS = 10_000
MAX_OUTPUT_TOKENS = 2**31 - 1
"""Of all turns of a response together, so that a model's context says little of it: the largest number that is asked
for where no bound is meant."""


def check_request(body: ResponsesRequest, limits: Limits) -> None:
    """Raises BadRequestError."""
    ranged("max_output_tokens", body.max_output_tokens, 1, MAX_OUTPUT_TOKENS, 1)
    ranged("max_tool_calls", body.max_tool_calls, 0, MAX_TOOL_CALLS, 0)
    ranged("top_logprobs", body.top_logprobs, 0, limits.max_logprobs, 0)
    if body.conversation is not None:
        raise BadRequestError(
            "conversation is not supported: use previous_response_id, or send the items", param="conversation"
        )
    if body.prompt is not None:
        raise BadRequestError("prompt is not supported: there are no stored prompts; use input", param="prompt")
    if body.reasoning is not None:
        _among("reasoning.effort", body.reasoning.effort, EFFORTS)
        _among("reasoning.summary", body.reasoning.summary, SUMMARIES)
        _among("reasoning.generate_summary", body.reasoning.generate_summary, SUMMARIES)
    if body.text is not None:
        _among("text.verbosity", body.text.verbosity, VERBOSITIES)
    _among("truncation", body.truncation, TRUNCATIONS)
    if len(body.include or ()) > len(INCLUDABLE):
        raise BadRequestError(
            f"include has {len(body.include or ())} entries; at most {len(INCLUDABLE)} are taken", param="include"
        )
    for at, name in enumerate(body.include or ()):
        _among(f"include[{at}]", name, INCLUDABLE)
    _check_metadata(body.metadata or {})
    for name, label in (
        ("user", body.user),
        ("safety_identifier", body.safety_identifier),
        ("prompt_cache_key", body.prompt_cache_key),
        ("service_tier", body.service_tier),
    ):
        if label is not None and len(label) > MAX_LABEL_LENGTH:
            raise BadRequestError(
                f"{name} has {len(label)} characters; at most {MAX_LABEL_LENGTH} are taken", param=name
            )


def _among(name: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise BadRequestError(f"{name} must be one of {', '.join(known)}, not {short(value)}", param=name)


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > MAX_PAIRS:
        raise BadRequestError(f"metadata has {len(metadata)} pairs; at most {MAX_PAIRS} are taken", param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_KEY_LENGTH:
            raise BadRequestError(
                f"metadata has a key of {len(key)} characters; at most {MAX_KEY_LENGTH} are taken", param="metadata"
            )
        if len(value) > MAX_VALUE_LENGTH:
            raise BadRequestError(
                f"metadata.{key} has {len(value)} characters; at most {MAX_VALUE_LENGTH} are taken", param="metadata"
            )
