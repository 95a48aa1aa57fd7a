"""How much of the model's context the results of tools may take, and what is told of one that is longer.

A result is cut before it is told, so that the item, what is kept of it and what the model reads are the same. Used by
server_calls.py and run.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec
from attrs import frozen

from app.responses.history import told_to_model
from app.responses.input_items import as_input
from app.schemas.responses import McpCallItem, McpToolExecutionError, OutputItem, text_error
from app.tokenizer import Tokenizer
from protocol.errors import BadRequestError

TOO_LONG = "context_length_exceeded"
CHARACTERS_OF_A_TOKEN = 16
"""More than texts have on average, but for long runs of blanks: what lies beyond is cut unseen, since looking takes
seconds."""


@frozen
class FittedResult:
    call: McpCallItem
    """Its text cut to what fits, with a note that it was."""
    num_tokens: int
    """Of its text, as the tokeniser reads it by itself: what a template puts around it does not count."""


def room_for_results(context: int, num_used: int) -> int:
    """Tokens for all results of one turn, after `num_used`: a quarter of the context stays free, or half of what is
    left where that is less."""
    free = max(0, context - num_used)
    return max(free - context // 4, free // 2)


async def fitted(call: McpCallItem, most: int, tokenizer: Tokenizer) -> FittedResult:
    """`call`: one that has ended. `most`: tokens that its result may have."""
    text = call.output if call.error is None else _text_of_error(call)
    if not text:
        return FittedResult(call, 0)
    looked_at = most * CHARACTERS_OF_A_TOKEN
    if len(text) <= looked_at:
        num_tokens = await _num_tokens(text, tokenizer)
        if num_tokens * 4 <= most or await _size(text, tokenizer) <= most:
            return FittedResult(call, num_tokens)
    told = await _cut(text, looked_at, most, tokenizer)
    return FittedResult(_with_text(call, told), await _num_tokens(told, tokenizer))


def explained(error: BadRequestError, items: Iterable[OutputItem]) -> BadRequestError:
    """Of a conversation that does not fit any longer: the same with the tool that has told most."""
    calls = [item for item in items if isinstance(item, McpCallItem)]
    if error.code != TOO_LONG or not calls:
        return error
    lengths = [len(told_to_model(as_input(call))) for call in calls]
    most = max(lengths)
    call = calls[lengths.index(most)]
    return BadRequestError(
        f"{error.message} The longest result in it is that of the tool {call.name[:80]!r} of the MCP server "
        f"{call.server_label!r}, with {most} characters.",
        param=error.param,
        code=error.code,
    )


def _text_of_error(call: McpCallItem) -> str | None:
    """What the tool itself has told; other errors are short."""
    return "\n".join(call.error.texts) if isinstance(call.error, McpToolExecutionError) else None


def _with_text(call: McpCallItem, text: str) -> McpCallItem:
    if call.error is None:
        return msgspec.structs.replace(call, output=text)
    return msgspec.structs.replace(call, error=text_error(text))


async def _cut(text: str, looked_at: int, most: int, tokenizer: Tokenizer) -> str:
    """Its beginning, and a note, of `most` tokens together, unless the note alone has more."""
    most -= await _size(_note(len(text), len(text)), tokenizer)
    kept = min(len(text), looked_at)
    size = await _size(text[:kept], tokenizer)
    while kept and size > most:
        kept = min(kept - 1, max(0, kept * most // size))
        size = await _size(text[:kept], tokenizer)
    return f"{text[:kept]}\n{_note(kept, len(text))}"


def _note(kept: int, length: int) -> str:
    return f"[cut: {length} characters do not fit into what is left of the model's context; the first {kept} are told]"


async def _size(text: str, tokenizer: Tokenizer) -> int:
    """The most tokens that it may have in a prompt: some templates write results as JSON."""
    return max(await _num_tokens(text, tokenizer), await _num_tokens(json.dumps(text, ensure_ascii=False), tokenizer))


async def _num_tokens(text: str, tokenizer: Tokenizer) -> int:
    [token_ids] = await tokenizer.encode_all([text], add_special_tokens=False)
    return len(token_ids)
