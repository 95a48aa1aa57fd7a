"""How one request wants its tokens chosen and its end found."""

from __future__ import annotations

import enum

import msgspec


class GrammarKind(enum.StrEnum):
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


Mark = int | str | tuple[int | str, ...]
"""A token's id, a text where the vocabulary has no such token, or several of these in a row."""


class Thoughts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Free text before what a grammar says, up to and with a mark that ends it."""

    opening: Mark
    """They may be left out, and begin with this. Empty: the prompt has begun them, so that they have to be ended."""
    closing: Mark
    """Begins with a token if it is several."""
    answer: tuple[int | str, ...] = ()
    """What comes before the answer, also without thoughts."""


class GrammarSource(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A grammar as a client wrote it, on its way to be checked (actors/grammar)."""

    kind: GrammarKind
    text: str
    after: Thoughts | None = None
    """What comes before."""


class Grammar(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A grammar that the output has to obey, as llguidance reads it.

    `text` is llguidance's own serialised form (`LLMatcher.grammar_from_*`). It has been built once, for the same
    tokeniser and with limits, by a grammar checker (actors/grammar): the engine may rely on that.
    """

    text: str


MAX_PATTERN_SIZE = 256
MAX_PATTERN_COUNT = 256
"""What RepetitionDetection may ask for: it costs each step."""


class RepetitionDetection(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An answer ends when its last tokens are the same piece over and over."""

    max_pattern_size: int
    """Tokens of the longest piece that is looked for; at least 1, at most MAX_PATTERN_SIZE."""
    min_pattern_size: int
    """Tokens of the shortest; from 1 to max_pattern_size."""
    min_count: int
    """How often the piece has to stand there; at least 2, at most MAX_PATTERN_COUNT."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Checked by the app; whoever reads it here may rely on every range that is stated.

    Positional on the wire: append fields at the end, with a default, and never reorder.
    """

    max_tokens: int
    """At least 0; 0 computes prompt log-probabilities only."""
    seed: int
    """int64. Always set: a request without a seed was given a random one. Sampling noise is a function of
    (seed, position) and nothing else."""
    temperature: float = 1.0
    """0 is greedy; never negative; the app turns tiny values into 0."""
    top_p: float = 1.0
    """In (0, 1]."""
    top_k: int = 0
    """0 is off, else at least 1."""
    min_p: float = 0.0
    """In [0, 1]."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Both in [-2, 2], over output tokens (OpenAI's definition)."""
    repetition_penalty: float = 1.0
    """Above 0, over prompt and output tokens (the CTRL paper's definition)."""
    logit_bias: dict[int, float] = {}
    """Token id (inside the vocabulary) to a value added to its logit, in [-100, 100]."""
    allowed_token_ids: list[int] | None = None
    """If set, not empty: every other token is forbidden."""
    bad_words_token_ids: list[list[int]] = []
    """Token sequences whose last token is forbidden when the ones before it were just produced."""
    min_tokens: int = 0
    """EOS and stop tokens are forbidden, and stop strings ignored, before this many output tokens."""
    eos_token_ids: list[int] = []
    """End the request with finish reason "stop" and no stop reason. Empty with ignore_eos."""
    stop_token_ids: list[int] = []
    """End the request with finish reason "stop" and the token id as stop reason."""
    stop: list[str] = []
    """Stop strings, none empty; matched by the output handler over the text."""
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    """None is off; 0 gives the sampled token's own; k gives the k best as well."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first."""
    grammar: Grammar | None = None
    repetition: RepetitionDetection | None = None
    """Looked for beyond min_tokens; ends the request with finish reason "repetition"."""
