"""What a reader makes of tokens, with the text that the output handler gives for them. Used by these tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actors.output.request_state import RequestState
from app.choice_reader import Wanted
from app.harmony.reader import HarmonyReader
from app.parts import Part
from app.tool_namespace import ToolNamespace
from protocol.messages import FinishReason, RequestOutput
from tests.app.dialects.reading import joined
from tests.helpers.engine_outputs import core_output, core_request
from tests.helpers.harmony_vocabulary import gpt_oss, gpt_oss_tokenizer, gpt_oss_vocabulary

NAMES = ("weather", "plain.thing", "one__add", "python__run")
NAMESPACES = (
    ToolNamespace("one", {"one__add": "add"}, "Adds."),
    ToolNamespace("python", {"python__run": "run"}, text_parameter="code"),
)
PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
ENDING = (200002, 200012)


def ids(text: str) -> list[int]:
    """Control tokens' spellings are these tokens."""
    return gpt_oss_tokenizer().encode(text, add_special_tokens=False)


def make_reader(prompt: str = PROMPT, wanted: Wanted | None = None, **options: Any) -> HarmonyReader:
    return gpt_oss().reader(ids(prompt), NAMES, NAMESPACES, wanted or Wanted(), **options)


def outputs(
    pieces: Sequence[Sequence[int]], reason: FinishReason = FinishReason.STOP, prompt: str = PROMPT, **params: Any
) -> list[RequestOutput]:
    """What the output handler tells of tokens that come in pieces."""
    state = RequestState(gpt_oss_vocabulary(), core_request(prompt=ids(prompt), eos_token_ids=list(ENDING), **params))
    told: list[RequestOutput] = []
    offset = 0
    for at, piece in enumerate(pieces):
        is_last = at == len(pieces) - 1
        output = state.advance(core_output(offset, piece, finish_reason=reason if is_last else None), 0.0)
        offset += len(piece)
        if output is not None:
            told.append(output)
        if state.stopped_by is not None:
            break
    return told


def read(reader: HarmonyReader, told: Sequence[RequestOutput]) -> list[Part]:
    return joined([part for output in told for part in reader.feed(output)])


def in_pieces(token_ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    bounds = sorted({min(cut, len(token_ids)) for cut in cuts})
    return [token_ids[a:b] for a, b in zip([0, *bounds], [*bounds, len(token_ids)], strict=True)]
