"""How much one request may ask for. Made once by app/settings.py; read by the routes and checks."""

from __future__ import annotations

import math

from attrs import frozen

EMBEDDINGS_AT_ONCE = 256


@frozen
class Limits:
    """Every bound that the HTTP side puts on a request, beyond what the model itself sets."""

    max_body_bytes: int = 16 * 2**20
    max_json_depth: int = 100
    body_seconds: float = 60.0
    """How long a client may take to send its body."""
    request_seconds: float = math.inf
    """How long a request may take, once its body is here. Its own `timeout` may only be shorter."""
    max_messages: int = 4096
    max_prompts: int = 1024
    """Prompts in one completions request."""
    max_embeddings: int = 2048
    """Inputs in one embeddings request."""
    max_embedding_numbers: int = 4 * 2**20
    """Inputs times dimensions in one embeddings request: its answer is written in memory, some 20 bytes a number."""
    max_embeddings_at_once: int = EMBEDDINGS_AT_ONCE
    """Of these, so many are with the engine at a time: others get their turn between them."""
    max_n: int = 128
    max_choices: int = 1024
    """n times the number of prompts."""
    max_token_ids: int = 4_000_000
    """Token ids of all choices together: each choice carries its prompt and the ids that its sampling goes by."""
    max_prompt_logprobs: int = 1_000_000
    """Of all choices together, alternatives included: they are told in one piece, which takes a second."""
    max_logprobs: int = 20
    max_stop: int = 16
    max_stop_length: int = 1024
    """Characters of one stop string."""
    max_stop_token_ids: int = 128
    max_logit_bias: int = 1024
    max_bad_words: int = 256
    max_bad_word_length: int = 128
    """Characters of one bad word."""
    max_cache_salt_length: int = 1024
    """Characters."""
    max_tools: int = 128
    trusts_chat_templates: bool = False
    """Whether a request may bring its own chat template. One can take any time and memory."""
    max_chat_template_length: int = 65_536
    """Characters."""
    max_grammar_bytes: int = 256 * 2**10
    max_pattern_length: int = 8192
    """Characters of one regular expression, alone or inside a schema."""
    max_choice_strings: int = 1024
