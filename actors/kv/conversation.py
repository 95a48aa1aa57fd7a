"""A connection to another connector whose owner has been made sure of: questions and their answers. Used by
actors/kv/peers and the transports."""

from __future__ import annotations

from typing import TypeVar, final

import trio

from actors.kv.greeting import OwnerFacts
from actors.kv.lending import FetchError
from actors.kv.peer_messages import MAX_MESSAGE_BYTES, Answer, Question, encode, read_answer
from actors.kv.wire import Wire

ANSWER_SECONDS = 5.0
"""For each answer: who owes it longer is stopped, or as good as that."""

A = TypeVar("A", bound=Answer)


@final
class Conversation:
    """One question at a time. After a FetchError or a cancellation it is to be closed."""

    def __init__(self, wire: Wire, facts: OwnerFacts) -> None:
        self.wire = wire
        self.facts = facts
        self._number = 0
        self._telling = trio.Lock()

    def number(self) -> int:
        """For the next question."""
        self._number += 1
        return self._number

    async def tell(self, question: Question) -> None:
        """One that has no answer, or is answered later. Raises FetchError: "timeout", "broken"."""
        try:
            with trio.fail_after(ANSWER_SECONDS):
                async with self._telling:  # where a transport reads, another task says meanwhile that we are at it
                    await self.wire.send(encode(question))
        except trio.TooSlowError:
            raise FetchError("timeout", f"the other connector has taken nothing for {ANSWER_SECONDS:g} s") from None

    async def answer(self, *kinds: type[A]) -> A:
        """To the last question. Raises FetchError: "timeout", "broken"."""
        try:
            with trio.fail_after(ANSWER_SECONDS):
                answer = read_answer(await self.wire.receive(MAX_MESSAGE_BYTES))
        except trio.TooSlowError:
            raise FetchError("timeout", f"the other connector has not answered for {ANSWER_SECONDS:g} s") from None
        if not isinstance(answer, kinds) or answer.number != self._number:
            raise FetchError("broken", f"the other connector answers {type(answer).__name__} to another question")
        return answer

    def close(self) -> None:
        self.wire.close()
