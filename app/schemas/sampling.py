"""The fields that chat and completions share: how tokens are chosen and where the answer ends.

Types are checked while decoding; ranges, and what depends on the model, in app/sampling.py. Every field may be null,
which means its default. Fields that trillm does not know are ignored, as the OpenAI API's other servers do.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(msgspec.Struct, frozen=True):
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's extension: exactly one of the fields is set."""

    json: str | dict[str, Any] | bool | None = None
    """A schema, or one written as a string."""
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """In llguidance's Lark dialect."""
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    """Refused."""


class RepetitionDetection(msgspec.Struct, frozen=True):
    """vLLM's extension: end an answer whose last tokens are one piece over and over."""

    max_pattern_size: int | None = None
    """Tokens of the longest piece; 0, the default, looks for none."""
    min_pattern_size: int | None = None
    """Of the shortest; 0, the default, is 1."""
    min_count: int | None = None
    """How often it has to stand there."""


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: int | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    """Log-probabilities name tokens "token_id:ID" instead of by their text."""
    return_prompt_text: bool | None = None
    """A whole answer also tells the prompt as the model saw it, with its control tokens."""
    truncate_prompt_tokens: int | None = None
    """The most prompt tokens to keep; -1 is as much as fits beside the answer."""
    truncation_side: Literal["left", "right"] | None = None
    """Where a prompt is cut; "left", the default, keeps its end."""
    stream_interval: int | None = None
    """Tokens that each event of a stream tells, but for the first and the last."""
    request_id: str | None = None
    """A label, as the header X-Request-Id, which goes before it."""
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    """Of beam search: only 1, which does nothing, is taken."""
    logprob_token_ids: list[int] | None = None
    """Refused unless empty."""
    repetition_detection: RepetitionDetection | None = None
    kv_transfer_params: dict[str, Any] | None = None
    """Where the KV of the prompt comes from, or that it is to be kept for another server."""
    ec_transfer_params: dict[str, Any] | None = None
    """Refused unless empty, as the next one is."""
    vllm_xargs: dict[str, Any] | None = None
    timeout: float | None = None
    """Seconds that the request may take, from when its body is here."""
    user: str | None = None
