"""What is to be embedded, as token ids. Used by app/routes/embeddings.py, before the engine is asked.

An embedding answers nothing, so that an input may fill the whole context. One that is cut keeps the tokens that the
tokeniser adds at its ends: models whose vector is the last token's were trained with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from app.chat import encode_chat
from app.checks import check_token_ids, ranged
from app.conversation import conversation_of
from app.schemas.embeddings import EmbeddingRequest
from app.services import Services
from app.template_source import template_for
from app.tokenizer import Cut, kept_part
from app.truncation import AS_MUCH_AS_FITS
from protocol.errors import BadRequestError


async def embedding_inputs(services: Services, body: EmbeddingRequest) -> Sequence[list[int]]:
    """The token ids of each input, at least one; `dimensions` has been checked. Raises BadRequestError."""
    if (body.input is None) == (body.messages is None):
        raise BadRequestError("Exactly one of input and messages is needed", param="input")
    max_model_len = services.facts().max_model_len
    cut = _cut(body, max_model_len)
    if body.messages is not None:
        found: Sequence[list[int]] = [_cut_ids(await _of_messages(services, body), cut)]
    else:
        found = await _of_input(services, body, cut)
    longest, total = max(map(len, found)), sum(map(len, found))
    if longest > max_model_len:
        raise _too_long(longest, max_model_len)
    if total > services.limits.max_token_ids:
        raise BadRequestError(
            f"The inputs have {total} tokens together; at most {services.limits.max_token_ids} are taken in one "
            "request",
            param="input",
        )
    return found


def _cut(body: EmbeddingRequest, max_model_len: int) -> Cut | None:
    most = body.truncate_prompt_tokens
    if most is None:
        return None
    if most != AS_MUCH_AS_FITS:
        ranged("truncate_prompt_tokens", most, 1, max_model_len, 1)
    return Cut(max_model_len if most == AS_MUCH_AS_FITS else most, body.truncation_side or "right")


def _cut_ids(token_ids: list[int], cut: Cut | None) -> list[int]:
    return token_ids if cut is None else kept_part(token_ids, cut.most, cut.side)


async def _of_messages(services: Services, body: EmbeddingRequest) -> list[int]:
    template = await template_for(services, body.chat_template)
    conversation = conversation_of(
        body.messages or [],
        max_messages=services.limits.max_messages,
        tools=None,
        documents=None,
        template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=bool(body.add_generation_prompt),
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens,
    )
    return await encode_chat(services, template, conversation)


async def _of_input(services: Services, body: EmbeddingRequest, cut: Cut | None) -> Sequence[list[int]]:
    texts, lists = _sorted(services, body.input)
    _check_numbers(services, len(texts) + len(lists), body.dimensions)
    if lists:
        for token_ids in lists:
            if cut is None and len(token_ids) > services.facts().max_model_len:
                raise _too_long(len(token_ids), services.facts().max_model_len)
            check_token_ids("input", token_ids, services.vocab_size())
        found: Sequence[list[int]] = [_cut_ids(token_ids, cut) for token_ids in lists]
    else:
        if cut is None:
            for text in texts:
                services.tokenizer.check_length(text, services.facts().max_model_len)
        adds = body.add_special_tokens is not False
        found = await services.tokenizer.encode_all(texts, add_special_tokens=adds, cut=cut)
    if not all(found):
        raise BadRequestError("input must not be empty, nor have an empty text or list in it", param="input")
    return found


def _sorted(
    services: Services, given: str | list[str | int | list[int]] | None
) -> tuple[Sequence[str], Sequence[list[int]]]:
    """Texts, or lists of token ids: one of the two is empty. Raises BadRequestError for what is neither, and for lists
    that are too long before they are walked through."""
    items = [given] if isinstance(given, str) else given or []
    is_one_list = bool(items) and isinstance(items[0], int)
    most = services.limits.max_embeddings
    if not is_one_list and len(items) > most:
        raise BadRequestError(f"input has {len(items)} inputs; at most {most} are taken in one request", param="input")
    kinds = set(map(type, items))  # once through what may be a million token ids, while everybody waits
    if len(kinds) != 1 or (kinds == {str} and not all(items)):
        raise BadRequestError(
            "input must be a text, a list of texts, a list of token ids or a list of such lists, with nothing empty",
            param="input",
        )
    if kinds == {str}:
        return cast("list[str]", items), []
    return [], [cast("list[int]", items)] if is_one_list else cast("list[list[int]]", items)


def _check_numbers(services: Services, count: int, dimensions: int | None) -> None:
    """Raises BadRequestError for an answer that would be too large, before anything is computed."""
    size = services.facts().hidden_size if dimensions is None else dimensions
    most = services.limits.max_embedding_numbers
    if count * size > most:
        raise BadRequestError(
            f"{count} inputs of {size} dimensions each are {count * size} numbers; at most {most} are told in one "
            "answer. Please send fewer inputs, or set dimensions",
            param="input",
        )


def _too_long(length: int, max_model_len: int) -> BadRequestError:
    return BadRequestError(
        f"This model's maximum context length is {max_model_len} tokens, but an input has {length}. Please shorten it, "
        "or set truncate_prompt_tokens.",
        param="input",
        code="context_length_exceeded",
    )
