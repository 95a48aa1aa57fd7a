"""What was said in a chat, as the next request repeats it. Pure; used by app/commands/chat_session.py."""

from __future__ import annotations

from typing import final

import msgspec

from protocol.errors import BadRequestError


class Turn(msgspec.Struct, frozen=True):
    role: str
    content: str


@final
class Conversation:
    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self._turns: list[Turn] = []
        self._question: str | None = None
        """The last one, also if it was not answered."""
        self._has_answer = False

    @property
    def messages(self) -> list[Turn]:
        """With the system prompt."""
        return [*([Turn("system", self.system)] if self.system else ()), *self._turns]

    def ask(self, text: str) -> None:
        self._turns.append(Turn("user", text))
        self._question, self._has_answer = text, False

    def answered(self, text: str) -> None:
        """Also with the part of an answer that came. Without any the question is taken back: many templates take no
        two questions in a row."""
        self._has_answer = bool(text)
        if text:
            self._turns.append(Turn("assistant", text))
        else:
            self._turns.pop()

    def ask_again(self) -> None:
        """Without the answer that there was. Raises BadRequestError if nothing was asked yet."""
        if self._question is None:
            raise BadRequestError("nothing was asked yet")
        if self._has_answer:
            del self._turns[-2:]
        self.ask(self._question)

    def clear(self) -> None:
        """The system prompt stays."""
        self._turns.clear()
        self._question, self._has_answer = None, False

    def as_markdown(self) -> str:
        return "\n\n".join(f"**{turn.role}**\n\n{turn.content.strip()}" for turn in self.messages) + "\n"

    def as_json(self) -> bytes:
        """A list of messages as requests have it."""
        return msgspec.json.format(msgspec.json.encode(self.messages)) + b"\n"
