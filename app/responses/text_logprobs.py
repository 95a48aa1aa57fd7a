"""Log-probabilities as responses tell them: as chats do, but that bytes are never null."""

from __future__ import annotations

from collections.abc import Sequence

from app.logprobs import finite
from app.schemas.responses import TextLogprob, TextTopLogprob
from protocol.messages import PositionLogprobs


def text_logprobs(positions: Sequence[PositionLogprobs]) -> list[TextLogprob]:
    return [_position(position) for position in positions]


def _position(position: PositionLogprobs) -> TextLogprob:
    chosen = position.chosen
    top = [TextTopLogprob(top.token, finite(top.logprob), list(top.token_bytes)) for top in position.top]
    return TextLogprob(chosen.token, finite(chosen.logprob), list(chosen.token_bytes), top)
