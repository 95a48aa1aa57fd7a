"""The requests of a run: a bounded set, so that each can be asked once beforehand, alone and undisturbed.

Each is determined by its body: greedy, or with a seed. Grammars get a number that changes nothing but what the checker
sees, since those that were found good are remembered and would never reach one again.
"""

from __future__ import annotations

import copy
from typing import Any

import attrs

LINE = "The harbour was quiet when the first boats came home, and a thin mist hung over the water. "
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer"},
        "fresh": {"type": "boolean"},
    },
    "required": ["name", "count", "fresh"],
    "additionalProperties": False,
}


@attrs.frozen
class Ask:
    """One request that may be made any number of times."""

    name: str
    path: str
    body: dict[str, Any]
    stream: bool
    schema: bool = False

    def numbered(self, number: int) -> dict[str, Any]:
        """The body to send. Of one with a schema, with a new text of the same meaning."""
        body = copy.deepcopy(self.body)
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.schema:
            body["response_format"]["json_schema"]["schema"]["description"] = f"of a catch, {number}"
        return body


def completion(prompt: str, **fields: object) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": prompt, **fields}


def chat(text: str, **fields: object) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields}


def asks(tokens: int, long_prompt_lines: int) -> list[Ask]:
    """Each streamed and whole. `tokens` is about the length of an answer."""
    form = {"type": "json_schema", "json_schema": {"name": "catch", "schema": SCHEMA}}
    whole = {"ignore_eos": True, "max_tokens": tokens}
    kinds = {
        "greedy": completion("Once upon a time", temperature=0, **whole),
        "greedy to its end": completion("Two boats and", temperature=0, max_tokens=tokens),
        "seeded": completion("The weather", temperature=1.0, seed=11, **whole),
        "top-p, top-k": completion("Tomorrow", temperature=0.8, top_p=0.9, top_k=12, seed=12, **whole),
        "penalties": completion(
            "Four hundred", seed=13, frequency_penalty=0.8, presence_penalty=0.5, repetition_penalty=1.1, **whole
        ),
        "stop strings": completion(
            "In the end", seed=14, stop=["ee", " th", "."], max_tokens=tokens, min_tokens=tokens // 8
        ),
        "logprobs": completion("The answer is", temperature=0.7, seed=15, logprobs=3, **whole),
        "n of 3": completion("Yes or no", temperature=1.0, seed=16, n=3, **whole),
        "min_tokens": completion("wait", temperature=1.0, seed=17, min_tokens=tokens // 2, max_tokens=tokens),
        "long prompt": completion(LINE * long_prompt_lines, temperature=0, **whole),
        "chat": chat("Tell me of boats.", temperature=0, **whole),
        "chat, logprobs": chat("How many?", seed=18, logprobs=True, top_logprobs=2, **whole),
        "json_schema": chat("What was caught?", temperature=0.9, seed=19, max_tokens=tokens, response_format=form),
    }
    return [
        Ask(f"{name}{', streamed' if stream else ''}", path, body, stream, schema=name == "json_schema")
        for name, (path, body) in kinds.items()
        for stream in (True, False)
    ]
