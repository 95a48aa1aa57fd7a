"""What a parser makes of a text that comes in pieces. Used by the dialects' tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from app.choice_reader import TextParser, TextReader
from app.parts import CallPiece, Content, Part, Reasoning
from protocol.ids import RequestId
from protocol.messages import FinishReason, RequestOutput

NAMES = ("weather", "plain.thing")


def read(parser: TextParser, pieces: Sequence[str], *, cut: bool = False) -> list[Part]:
    """Every part, and what the pieces of each call are together."""
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return joined([*parts, *parser.end(cut)])


def joined(parts: Sequence[Part]) -> list[Part]:
    """Neighbours of one kind as one, without the ids, which are random."""
    whole: list[Part] = []
    for part in parts:
        last = whole[-1] if whole else None
        match part, last:
            case CallPiece(_, arguments, None, _), CallPiece():
                whole[-1] = CallPiece(last.index, last.arguments + arguments, "id", last.name)
            case CallPiece(index, arguments, str(id), name), _:
                assert id
                whole.append(CallPiece(index, arguments, "id", name))
            case Content(text), Content():
                whole[-1] = Content(last.text + text)
            case Reasoning(text), Reasoning():
                whole[-1] = Reasoning(last.text + text)
            case _:
                whole.append(part)
    return [part for part in whole if isinstance(part, CallPiece) or part.text]


def call(index: int, name: str, arguments: str) -> CallPiece:
    return CallPiece(index, arguments, "id", name)


def finish_reason(make: Callable[[], TextParser], text: str, reason: FinishReason = FinishReason.STOP) -> str:
    reader = TextReader(make())
    reader.feed(RequestOutput(RequestId("r"), 0, [1], text, finish_reason=reason))
    return reader.finish_reason(reason)


@st.composite
def in_pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
