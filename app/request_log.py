"""A line for each request that is about to run, if the operator wants it: what it asks for, without its words.

`--enable-log-requests` has it done by app/respond.py and app/routes/embeddings.py; `--max-log-len` adds the beginning
of each prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from attrs import frozen

from app.engine import Prompt
from app.tokenizer import Tokenizer
from protocol.pooling import PoolingParams
from protocol.sampling import SamplingParams

log = logging.getLogger("trillm.requests")

_NUMBERS = (
    *("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "logprobs", "prompt_logprobs"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
_LISTS = ("stop", "stop_token_ids", "logit_bias", "allowed_token_ids", "bad_words_token_ids")
"""Told by how many there are: they may be words, or stand for words."""


@frozen
class RequestLog:
    """What the operator wants to read."""

    is_on: bool = False
    max_characters: int = 0
    """Of a prompt."""

    def tell(self, label: str, prompts: Sequence[Prompt], n: int, stream: bool, tokenizer: Tokenizer) -> None:
        if not self.is_on:
            return
        lengths = ", ".join(str(len(prompt.prompt_token_ids)) for prompt in prompts[::n])
        first = prompts[0]
        params = described(first.sampling_params) if first.pooling is None else described_pooling(first.pooling)
        log.info("%s: prompt tokens %s, n=%d stream=%s %s", label, lengths, n, stream, params)
        if self.max_characters:
            for prompt in prompts[::n]:
                text = tokenizer.decode(prompt.prompt_token_ids[: self.max_characters])  # no token is less than a byte
                log.info("%s: prompt %r", label, text[: self.max_characters])


def described(params: SamplingParams) -> str:
    fields = msgspec.structs.asdict(params)
    told = [f"{name}={fields[name]}" for name in _NUMBERS if fields[name] is not None]
    told += [f"{name}={len(fields[name])}" for name in _LISTS if fields[name]]
    return " ".join([*told, *([] if params.grammar is None else ["grammar"])])


def described_pooling(params: PoolingParams) -> str:
    dimensions = "" if params.dimensions is None else f" dimensions={params.dimensions}"
    return f"pooling={params.pooling} normalize={params.normalize}{dimensions}"
