"""What the span of a request tells, by name. Pure; used by app/tracing/middleware.py.

Names are vLLM's (gen_ai.request.id, gen_ai.usage.prompt_tokens, gen_ai.latency.…), and beside them those that
OpenTelemetry's semantic conventions for generative AI have by now where they differ. Neither prompts nor answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from app.access_log import Access
from app.tracing.request_trace import Outcome, RequestTrace
from app.tracing.sequence import TracedSequence
from app.tracing.span import AttributeValue
from protocol.sampling import SamplingParams

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""The routes whose requests have spans: they run the model."""


def first_attributes(method: str, path: str) -> dict[str, AttributeValue]:
    """Known from the start, so that a sampler may go by them. `path` is one of OPERATIONS."""
    return {
        "gen_ai.operation.name": OPERATIONS[path],
        "gen_ai.provider.name": "trillm",
        "http.request.method": method,
        "url.path": path,
    }


def outcome_of(trace: RequestTrace, access: Access, ended: float) -> Outcome:
    """When the request is over. A client's mistake is no error of this span, as HTTP's conventions have it."""
    attributes: dict[str, AttributeValue] = {
        "gen_ai.usage.prompt_tokens": access.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": access.num_tokens,
        "gen_ai.usage.input_tokens": access.num_prompt_tokens,
        "gen_ai.usage.output_tokens": access.num_tokens,
        "gen_ai.usage.num_sequences": trace.num_sequences,
        "gen_ai.latency.e2e": ended - trace.began,
    }
    if access.answer_id != "-":
        attributes |= {"gen_ai.request.id": access.answer_id, "gen_ai.response.id": access.answer_id}
    if access.model != "-":
        attributes |= {"gen_ai.request.model": access.model, "gen_ai.response.model": access.model}
    if access.finish != "-":
        attributes["gen_ai.response.finish_reasons"] = access.finish.split(",")
    if trace.params is not None:
        attributes |= asked_for(trace.params, trace.num_choices)
    sequences = [sequence for generation in trace.generations for sequence in generation.sequences]
    if sequences:
        attributes |= latencies(sequences[0], trace.began)
        n = max(1, trace.num_choices)  # choices of one prompt read the same
        firsts = [sequence for generation in trace.generations for sequence in generation.sequences[::n]]
        attributes["gen_ai.usage.cache_read.input_tokens"] = sum(each.num_cached_tokens for each in firsts)
    if trace.num_untold:
        attributes["trillm.num_sequences_untold"] = trace.num_untold
    return concluded(attributes, access, ended)


def concluded(attributes: Mapping[str, AttributeValue], access: Access, ended: float) -> Outcome:
    """With what is true of any request over HTTP."""
    status = access.told_status
    told: dict[str, AttributeValue] = {
        "http.route": access.handler,
        "http.response.status_code": status,
        "trillm.request.label": access.label,
        "trillm.end": access.end,
        **attributes,
    }
    failure = access.failure
    if failure is None and status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        failure = str(status)
    if failure is not None or status >= HTTPStatus.BAD_REQUEST:
        told["error.type"] = failure or str(status)
    return Outcome(ended, told, failure)


def asked_for(params: SamplingParams, num_choices: int) -> dict[str, AttributeValue]:
    """Numbers only: stop strings are words."""
    attributes: dict[str, AttributeValue] = {"gen_ai.request.n": num_choices}
    if params.max_tokens:  # else it is an embedding's
        attributes |= {
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.seed": params.seed,
        }
        if params.top_k > 0:
            attributes["gen_ai.request.top_k"] = params.top_k
        if params.frequency_penalty:
            attributes["gen_ai.request.frequency_penalty"] = params.frequency_penalty
        if params.presence_penalty:
            attributes["gen_ai.request.presence_penalty"] = params.presence_penalty
    if num_choices > 1:
        attributes["gen_ai.request.choice.count"] = num_choices
    return attributes


def latencies(sequence: TracedSequence, began: float) -> dict[str, AttributeValue]:
    """In seconds, of a request's first sequence, as far as it came."""
    attributes: dict[str, AttributeValue] = {"trillm.engine": f"engine-{sequence.engine}"}
    line = sequence.timeline
    if line is None:
        return attributes
    attributes["gen_ai.latency.time_in_queue"] = line.scheduled_at - line.arrived_at
    if sequence.num_tokens:
        attributes["gen_ai.latency.time_to_first_token"] = line.first_token_at - began
        attributes["gen_ai.latency.time_in_model_prefill"] = line.first_token_at - line.scheduled_at
        attributes["gen_ai.latency.time_in_model_decode"] = line.last_at - line.first_token_at
        attributes["gen_ai.latency.time_in_model_inference"] = line.last_at - line.scheduled_at
    return attributes
