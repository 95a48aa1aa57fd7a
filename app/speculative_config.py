"""--speculative-config: vLLM's JSON to what the engine needs. Read by app/settings.py."""

from __future__ import annotations

import msgspec

from protocol.errors import BadRequestError
from protocol.spec import DraftModelSpec, SpeculativeSpec

MAX_SPECULATIVE_TOKENS = 64
MAX_NGRAM = 64
DEFAULT_NGRAM = 5


class SpeculativeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As vLLM names it. Of the lookup's bounds one stands for the other; without both they are 5. A model makes the
    method "draft_model"."""

    num_speculative_tokens: int
    method: str | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    model: str | None = None


def read_speculative_config(text: str | None) -> SpeculativeSpec | DraftModelSpec | None:
    """A draft model's checkpoint is what the operator named; app/cli finds its directory.

    Raises BadRequestError for what is not JSON, not known, or out of range.
    """
    if text is None:
        return None
    try:
        config = msgspec.json.decode(text.encode(), type=SpeculativeConfig)
    except msgspec.DecodeError as error:
        raise BadRequestError(
            f"--speculative-config must be a JSON object with num_speculative_tokens, and method or model: {error}"
        ) from error
    if not 1 <= config.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS:
        raise BadRequestError(
            f"--speculative-config: num_speculative_tokens must be between 1 and {MAX_SPECULATIVE_TOKENS}, "
            f"not {config.num_speculative_tokens}"
        )
    match config.method or ("ngram" if config.model is None else "draft_model"):
        case "ngram":
            return _lookup(config)
        case "draft_model":
            return _draft_model(config)
        case other:
            raise BadRequestError(
                f"--speculative-config: method {other!r} is not served, only 'ngram' and 'draft_model'"
            )


def _lookup(config: SpeculativeConfig) -> SpeculativeSpec:
    if config.model is not None:
        raise BadRequestError(f"--speculative-config: method 'ngram' has no model, and {config.model!r} is given")
    lowest, highest = config.prompt_lookup_min, config.prompt_lookup_max
    if lowest is None:
        lowest = DEFAULT_NGRAM if highest is None else highest
    if highest is None:
        highest = lowest
    if not 1 <= lowest <= highest <= MAX_NGRAM:
        raise BadRequestError(
            f"--speculative-config: 1 <= prompt_lookup_min <= prompt_lookup_max <= {MAX_NGRAM} must hold, "
            f"and they are {lowest} and {highest}"
        )
    return SpeculativeSpec(config.num_speculative_tokens, highest, lowest)


def _draft_model(config: SpeculativeConfig) -> DraftModelSpec:
    if not config.model:
        raise BadRequestError("--speculative-config: method 'draft_model' needs a model")
    if config.prompt_lookup_max is not None or config.prompt_lookup_min is not None:
        raise BadRequestError("--speculative-config: prompt_lookup_max and _min are for method 'ngram'")
    return DraftModelSpec(config.num_speculative_tokens, config.model)
