"""Whatever JSON a client sends: an answer or a refusal in OpenAI's shape; nothing out of range reaches the engine."""

from __future__ import annotations

import json
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from app.schemas.chat import ChatRequest
from app.schemas.completions import CompletionRequest
from protocol.sampling import SamplingParams
from tests.helpers.app_under_test import make_app

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2, 0.5, 1e-9, 1e300, 2**31, 2**63, 2**64, -(2**63), 10**30, 511, 512]),
    st.sampled_from(["", "a", "<|im_end|>", "required", "auto", "none", "船", "\x00", "json_object"]),
    st.lists(st.sampled_from(["", "a", 1, 511, 512, -1, 1.5, None, [1], {}]), max_size=3),
    st.dictionaries(
        st.sampled_from(["a", "1", "512", "type", "include_usage"]), st.sampled_from([1, "text", None, True])
    ),
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
GOOD: dict[str, list[Any]] = {
    "messages": [[{"role": "user", "content": "Hi"}], [{"role": "x", "content": [{"type": "text", "text": "a"}]}]],
    "prompt": ["Hi", ["a", "b"], [5, 6], [[5], [6, 7]]],
    "tools": [[TOOL]],
    "tool_choice": [{"type": "function", "function": {"name": "f"}}],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}],
    "structured_outputs": [{"regex": "a+"}, {"choice": ["a"]}],
    "logit_bias": [{"5": 1}],
    "stream_options": [{"include_usage": True, "continuous_usage_stats": True}],
}
NAMES = sorted({*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__})
FIELDS = st.dictionaries(st.sampled_from(NAMES), st.none(), max_size=6).flatmap(
    lambda names: st.fixed_dictionaries(
        {name: st.one_of(ODD, st.sampled_from(GOOD[name])) if name in GOOD else ODD for name in names}
    )
)


def in_range(params: SamplingParams) -> bool:
    ids = [*params.logit_bias, *params.stop_token_ids, *params.eos_token_ids, *(params.allowed_token_ids or [])]
    ids += [token_id for word in params.bad_words_token_ids for token_id in word]
    return (
        0 <= params.min_tokens <= params.max_tokens <= 256
        and -(2**63) <= params.seed < 2**63
        and 0 <= params.temperature <= 2
        and 0 < params.top_p <= 1
        and 0 <= params.top_k < 512
        and 0 <= params.min_p <= 1
        and params.repetition_penalty > 0
        and max(abs(params.presence_penalty), abs(params.frequency_penalty)) <= 2
        and all(0 <= token_id < 512 for token_id in ids)
        and all(params.stop)
        and params.allowed_token_ids != []
        and max(params.logprobs or 0, params.prompt_logprobs or 0) <= 20
    )


@settings(max_examples=100)
@given(st.sampled_from(["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]), FIELDS)
def test_any_request_is_answered_or_refused(path: str, fields: dict[str, Any]) -> None:
    under_test = make_app()
    body = {"messages": GOOD["messages"][0], "prompt": "Hi", "tokens": [5], **fields}
    if path == "/tokenize":
        del body["prompt"]
    reply = trio.run(lambda: under_test.post(path, **body))
    assert reply.status_code in (200, 400, 404, 501), reply.text
    if reply.status_code != 200:
        assert set(reply.json["error"]) == {"message", "type", "param", "code"}
        assert under_test.engine.prompts == []
    elif fields.get("stream") and "completions" in path:
        assert reply.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in reply.text
    else:
        json.loads(reply.data)
    assert all(in_range(prompt.sampling_params) for prompt in under_test.engine.prompts)
    assert under_test.engine.num_requests == 0
