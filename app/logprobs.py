"""Log-probabilities in the three shapes that the API tells them in: chat, completions, and vLLM's prompt_logprobs."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from app.schemas.chat import ChatLogprobs, TokenLogprob, TopLogprob
from app.schemas.completions import CompletionLogprobs
from protocol.messages import Logprob, PositionLogprobs

_LOWEST = -9999.0
"""Stands for -inf, which JSON cannot say: the logarithm of what a mask made impossible."""


def finite(logprob: float) -> float:
    return logprob if logprob > _LOWEST else _LOWEST


def chat_logprobs(positions: Sequence[PositionLogprobs], as_ids: bool = False) -> ChatLogprobs:
    """`as_ids`: tokens are named by their ids."""
    return ChatLogprobs([_chat_position(position, as_ids) for position in positions])


def _chat_position(position: PositionLogprobs, as_ids: bool) -> TokenLogprob:
    chosen = position.chosen
    return TokenLogprob(
        token_id_name(chosen) if as_ids else chosen.token,
        finite(chosen.logprob),
        list(chosen.token_bytes),
        [
            TopLogprob(token_id_name(top) if as_ids else top.token, finite(top.logprob), list(top.token_bytes))
            for top in position.top
        ],
    )


def prompt_logprobs(positions: Sequence[PositionLogprobs | None]) -> list[dict[str, Any] | None]:
    """One entry per prompt token: token id to what is known of it; the prompt's own token is always among them."""
    return [None if position is None else _prompt_position(position) for position in positions]


def _prompt_position(position: PositionLogprobs) -> dict[str, Any]:
    return {
        str(logprob.token_id): {
            "logprob": finite(logprob.logprob),
            "rank": logprob.rank,
            "decoded_token": logprob.token,
        }
        for logprob in (position.chosen, *position.top)
    }


@frozen
class EchoedToken:
    """The first token of a prompt, of which the engine tells nothing."""

    text: str
    name: str
    """As the answer's other tokens are named."""


class CompletionLogprobsWriter:
    """Completions tell where each token begins in the text, so the writer remembers how far one choice has come."""

    def __init__(self, as_ids: bool = False) -> None:
        """`as_ids`: tokens are named by their ids."""
        self._name = token_id_name if as_ids else token_name
        self._characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, positions: Sequence[PositionLogprobs]) -> CompletionLogprobs:
        """The next tokens of the choice."""
        offsets: list[int] = []
        for position in positions:
            offsets.append(self._characters)
            self._characters += len(self._decoder.decode(position.chosen.token_bytes))
        return CompletionLogprobs(
            offsets,
            [finite(position.chosen.logprob) for position in positions],
            [self._name(position.chosen) for position in positions],
            [self._top(position) for position in positions],
        )

    def _top(self, position: PositionLogprobs) -> dict[str, float]:
        top = {self._name(logprob): finite(logprob.logprob) for logprob in position.top}
        top.setdefault(self._name(position.chosen), finite(position.chosen.logprob))
        return top

    def write_prompt(
        self, first_token: EchoedToken, positions: Sequence[PositionLogprobs | None]
    ) -> CompletionLogprobs:
        """An echoed prompt: nothing predicts its first token."""
        self._characters = len(first_token.text)
        rest = self.write([position for position in positions if position is not None])
        return CompletionLogprobs(
            [0, *rest.text_offset],
            [None, *rest.token_logprobs],
            [first_token.name, *rest.tokens],
            [None, *rest.top_logprobs],
        )


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    return CompletionLogprobs(
        first.text_offset + second.text_offset,
        first.token_logprobs + second.token_logprobs,
        first.tokens + second.tokens,
        first.top_logprobs + second.top_logprobs,
    )


def token_name(logprob: Logprob) -> str:
    """The token's text, or its bytes spelled out where they are no whole characters (so that names stay distinct)."""
    try:
        logprob.token_bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in logprob.token_bytes)
    return logprob.token


def token_id_name(logprob: Logprob) -> str:
    """How a token is named for who asked for ids (return_tokens_as_token_ids); vLLM's spelling."""
    return f"token_id:{logprob.token_id}"
