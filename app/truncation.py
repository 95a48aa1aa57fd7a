"""truncate_prompt_tokens: a prompt that is cut to what was asked for, instead of being refused. Used by the routes."""

from __future__ import annotations

from app.checks import ranged
from app.sampling import Wanted
from app.schemas.sampling import SamplingFields
from app.tokenizer import kept_part
from protocol.errors import BadRequestError

AS_MUCH_AS_FITS = -1


def num_kept(fields: SamplingFields, wanted: Wanted, max_model_len: int) -> int | None:
    """The most tokens that a prompt may keep; None if it is not to be cut.

    As much as fits leaves room for what the answer may have: max_tokens, or its default, or one token.
    Raises BadRequestError for 0, and for more than the context.
    """
    asked = fields.truncate_prompt_tokens
    if asked is None:
        return None
    ranged("truncate_prompt_tokens", asked, AS_MUCH_AS_FITS, max_model_len, 0)
    if asked == 0:
        raise BadRequestError(
            "truncate_prompt_tokens must be -1 or at least 1, not 0: a prompt needs a token",
            param="truncate_prompt_tokens",
        )
    if asked != AS_MUCH_AS_FITS:
        return asked
    answer = wanted.default_max_tokens if wanted.max_tokens is None else wanted.max_tokens
    return max(1, max_model_len - max(1, answer or 1))


def truncated(token_ids: list[int], fields: SamplingFields, wanted: Wanted, max_model_len: int) -> list[int]:
    """The prompt as it is computed: its last tokens, or its first ones with truncation_side "right"."""
    kept = num_kept(fields, wanted, max_model_len)
    if kept is None or len(token_ids) <= kept:
        return token_ids
    return kept_part(token_ids, kept, fields.truncation_side)


def bounded_text(text: str, fields: SamplingFields, max_characters: int) -> str:
    """The part of a text that the kept tokens come from, so that no more is tokenised than could be kept.

    `max_characters` is more than any prompt's tokens stand for. The tokens beside a cut may differ from those of the
    whole text; they are among those that go.
    """
    if fields.truncate_prompt_tokens is None or len(text) <= max_characters:
        return text
    return kept_part(text, max_characters, fields.truncation_side)
