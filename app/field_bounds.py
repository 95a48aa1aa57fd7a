"""What the requests' fields may be beyond their types, as JSON Schema says it: app/openapi.py adds it to what msgspec
gives. The checks themselves are in app/sampling.py and beside the routes; a test holds the two together.
"""

from __future__ import annotations

from app.adapter_paths import MAX_PATH_LENGTH
from app.adapters import MAX_NAME_LENGTH
from app.calls import ALLOWED_TOOLS
from app.kv_transfer import MAX_FIELDS as MAX_TRANSFER_FIELDS
from app.limits import Limits
from app.messages_history import ROLES
from app.messages_request import CHOICES, DISPLAYS, EFFORTS, THINKS
from app.priority import MAX_PRIORITY, MIN_PRIORITY
from app.responses import request_checks
from app.responses.input_items import ROLES as ITEM_ROLES
from app.responses.item_ids import ITEM_TYPES
from protocol.sampling import MAX_PATTERN_COUNT, MAX_PATTERN_SIZE

Keywords = dict[str, object]
Bounds = dict[str, dict[str, Keywords]]
"""Field to JSON type to keywords for the alternative of that type."""

_TOKEN_ID: Keywords = {"type": "integer", "minimum": 0}

_SAMPLING_OF_MESSAGES = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("min_tokens", "seed", "priority", "cache_salt", "timeout"),
)

_SAMPLING_OF_RESPONSES = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *(
        "min_tokens",
        "seed",
        "priority",
        "cache_salt",
        "timeout",
        "logit_bias",
        "stop",
        "stop_token_ids",
        "stream_interval",
    ),
)


def field_bounds(limits: Limits) -> dict[str, Bounds]:
    """By the name of the struct. What depends on the model (token ids, lengths) has only its lower bound."""
    sampling = _sampling(limits)
    messages: Bounds = {"messages": {"array": {"minItems": 1, "maxItems": limits.max_messages}}}
    tools: Bounds = {"tools": {"array": {"maxItems": limits.max_tools}}}
    template: Keywords = (
        {"minLength": 1, "maxLength": limits.max_chat_template_length}
        if limits.trusts_chat_templates
        else {"maxLength": 0}
    )
    counted: Keywords = {"minimum": 0, "maximum": limits.max_logprobs}
    return {
        "ChatRequest": sampling
        | messages
        | tools
        | {
            "max_tokens": {"integer": {"minimum": 1}},
            "max_completion_tokens": {"integer": {"minimum": 1}},
            "top_logprobs": {"integer": counted},
            "thinking_token_budget": {"integer": {"not": {}}},
            "chat_template": {"string": template},
        },
        "CompletionRequest": sampling
        | {
            "max_tokens": {"integer": {"minimum": 0}},
            "logprobs": {"integer": counted},
            "prompt": {"string": {"minLength": 1}, "array": {"minItems": 1}},
            "suffix": {"string": {"maxLength": 0}},
        },
        "MessagesRequest": {name: sampling[name] for name in _SAMPLING_OF_MESSAGES}
        | messages
        | tools
        | {"max_tokens": {"integer": {"minimum": 1}}, "stop_sequences": {"array": sampling["stop"]["array"]}},
        "CountTokensRequest": messages | tools,
        "ResponsesRequest": {name: sampling[name] for name in _SAMPLING_OF_RESPONSES}
        | tools
        | {
            "input": {"string": {"minLength": 1}, "array": {"minItems": 1, "maxItems": limits.max_messages}},
            "max_output_tokens": {"integer": {"minimum": 1, "maximum": request_checks.MAX_OUTPUT_TOKENS}},
            "max_tool_calls": {"integer": {"minimum": 0, "maximum": request_checks.MAX_TOOL_CALLS}},
            "top_logprobs": {"integer": counted},
            "truncation": {"string": {"enum": [*request_checks.TRUNCATIONS]}},
            "include": {
                "array": {
                    "maxItems": len(request_checks.INCLUDABLE),
                    "items": {"enum": [*request_checks.INCLUDABLE]},
                }
            },
            "metadata": {
                "object": {
                    "maxProperties": request_checks.MAX_PAIRS,
                    "propertyNames": {"maxLength": request_checks.MAX_KEY_LENGTH},
                    "additionalProperties": {"type": "string", "maxLength": request_checks.MAX_VALUE_LENGTH},
                }
            },
            "conversation": {"string": {"not": {}}, "object": {"not": {}}},
            "prompt": {"object": {"not": {}}},
        }
        | {
            name: {"string": {"maxLength": request_checks.MAX_LABEL_LENGTH}}
            for name in ("user", "safety_identifier", "prompt_cache_key", "service_tier")
        },
        "InputItem": {
            "type": {"string": {"enum": [*ITEM_TYPES]}},
            "role": {"string": {"enum": [*ITEM_ROLES]}},
        },
        "ResponseTool": {"type": {"string": {"enum": ["function", "mcp"]}}},
        "ReasoningConfig": {
            "effort": {"string": {"enum": [*request_checks.EFFORTS]}},
            "summary": {"string": {"enum": [*request_checks.SUMMARIES]}},
            "generate_summary": {"string": {"enum": [*request_checks.SUMMARIES]}},
        },
        "TextConfig": {"verbosity": {"string": {"enum": [*request_checks.VERBOSITIES]}}},
        "TextFormat": {"type": {"string": {"enum": ["text", "json_object", "json_schema"]}}},
        "Turn": {"role": {"string": {"enum": [*ROLES]}}},
        "ClientTool": {"type": {"string": {"const": "custom"}}},
        "ToolChoice": {"type": {"string": {"enum": [*CHOICES, "tool"]}}},
        "Thinking": {
            "type": {"string": {"enum": [*THINKS]}},
            "budget_tokens": {"integer": {"minimum": 1}},
            "display": {"string": {"enum": [*DISPLAYS]}},
        },
        "JsonOutputFormat": {"type": {"string": {"const": "json_schema"}}},
        "OutputConfig": {"effort": {"string": {"enum": [*EFFORTS]}}},
        "EmbeddingRequest": {name: sampling[name] for name in ("priority", "cache_salt", "timeout")}
        | messages
        | {
            "input": {"string": {"minLength": 1}, "array": {"minItems": 1}},
            "dimensions": {"integer": {"minimum": 1}},
            "truncate_prompt_tokens": {"integer": {"minimum": -1}},
            "chat_template": {"string": template},
        },
        "TokenizeRequest": messages | tools,
        "LoadLoraAdapterRequest": {
            "lora_name": {"string": {"minLength": 1, "maxLength": MAX_NAME_LENGTH}},
            "lora_path": {"string": {"pattern": "^/", "maxLength": MAX_PATH_LENGTH}},
        },
        "DetokenizeRequest": {"tokens": {"array": {"items": _TOKEN_ID}}},
        "ResponseFormat": {"type": {"string": {"enum": ["text", "json_object", "json_schema"]}}},
        "RepetitionDetection": {
            "max_pattern_size": {"integer": {"minimum": 0, "maximum": MAX_PATTERN_SIZE}},
            "min_pattern_size": {"integer": {"minimum": 0, "maximum": MAX_PATTERN_SIZE}},
            "min_count": {"integer": {"maximum": MAX_PATTERN_COUNT}},
        },
        "Tool": {"type": {"string": {"const": "function"}}},
        "NamedToolChoice": {"type": {"string": {"enum": ["function", ALLOWED_TOOLS]}}},
        "AllowedTools": {
            "mode": {"string": {"enum": ["auto", "required"]}},
            "tools": {"array": {"minItems": 1, "maxItems": limits.max_tools}},
        },
    }


def _sampling(limits: Limits) -> Bounds:
    penalty: dict[str, Keywords] = {"number": {"minimum": -2, "maximum": 2}}
    return {
        "temperature": {"number": {"minimum": 0, "maximum": 2}},
        "top_p": {"number": {"exclusiveMinimum": 0, "maximum": 1}},
        "top_k": {"integer": {"minimum": -1}},
        "min_p": {"number": {"minimum": 0, "maximum": 1}},
        "presence_penalty": penalty,
        "frequency_penalty": penalty,
        "repetition_penalty": {"number": {"exclusiveMinimum": 0, "maximum": 100}},
        "n": {"integer": {"minimum": 1, "maximum": limits.max_n}},
        "best_of": {"integer": {"minimum": 1, "maximum": limits.max_n}},
        "seed": {"integer": {"minimum": -(2**63), "maximum": 2**63 - 1}},
        "priority": {"integer": {"minimum": MIN_PRIORITY, "maximum": MAX_PRIORITY}},
        "min_tokens": {"integer": {"minimum": 0}},
        "timeout": {"number": {"exclusiveMinimum": 0}},
        "prompt_logprobs": {"integer": {"minimum": 0, "maximum": limits.max_logprobs}},
        "cache_salt": {"string": {"minLength": 1, "maxLength": limits.max_cache_salt_length}},
        "logit_bias": {
            "object": {
                "maxProperties": limits.max_logit_bias,
                "propertyNames": {"pattern": "^[0-9]{1,10}$"},
                "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            }
        },
        "allowed_token_ids": {"array": {"minItems": 1, "items": _TOKEN_ID}},
        "stop_token_ids": {"array": {"maxItems": limits.max_stop_token_ids, "items": _TOKEN_ID}},
        "bad_words": {
            "array": {
                "maxItems": limits.max_bad_words,
                "items": {"type": "string", "minLength": 1, "maxLength": limits.max_bad_word_length},
            }
        },
        "stop": {
            "string": {"minLength": 1, "maxLength": limits.max_stop_length},
            "array": {
                "maxItems": limits.max_stop,
                "items": {"type": "string", "minLength": 1, "maxLength": limits.max_stop_length},
            },
        },
        "use_beam_search": {"boolean": {"const": False}},
        "length_penalty": {"number": {"const": 1}},
        "truncate_prompt_tokens": {"integer": {"minimum": -1, "not": {"const": 0}}},
        "stream_interval": {"integer": {"minimum": 1}},
        "logprob_token_ids": {"array": {"maxItems": 0}},
        "kv_transfer_params": {"object": {"maxProperties": MAX_TRANSFER_FIELDS}},
        "ec_transfer_params": {"object": {"maxProperties": 0}},
        "vllm_xargs": {"object": {"maxProperties": 0}},
    }
