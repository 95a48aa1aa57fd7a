"""Messages of an answer to its parts: thoughts, calls, and what is for the client. Pure. Used by app/harmony/reader.py.

A message to nobody who may be called is content, and so is one that is no object where it has to be one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from app.choice_reader import TextParser
from app.dialects.told_calls import ToldCalls
from app.harmony.recipients import Called, Recipients
from app.harmony.token_places import Opened
from app.parts import Content, Part, Reasoning

ANALYSIS = "analysis"


class MessageParts:
    """Of one choice; one message after the other."""

    def __init__(self, recipients: Recipients, answer: TextParser | None = None) -> None:
        """`answer` reads the bodies of answers, if they are more than text."""
        self._recipients = recipients
        self._answer = answer
        self._calls = ToldCalls(())
        self._message = Opened()
        self._called: Called | None = None
        """Who is called by this message, whose arguments have not begun."""
        self._in_call: Called | None = None
        self._blanks: list[str] = []

    @property
    def whole_calls(self) -> Sequence[bool]:
        """Of each call, in order, whether its arguments are complete and valid."""
        return self._calls.whole if self._answer is None else self._answer.whole_calls

    def is_thought(self, message: Opened | None) -> bool:
        return message is not None and message.channel == ANALYSIS and not self._recipients.find(message.recipient)

    def open(self, message: Opened) -> None:
        self._message = message
        self._called = self._recipients.find(message.recipient)
        self._in_call = None
        self._blanks = []

    def body(self, text: str) -> Sequence[Part]:
        """More of the message that is open."""
        if not text:
            return []
        if self._in_call is not None:
            return [self._calls.more(_argument(text, self._in_call))]
        if self._called is not None:
            return self._begun_call(self._called, text)
        if self.is_thought(self._message):
            return [Reasoning(text)]
        return [Content(text)] if self._answer is None else self._answer.feed(text)

    def close(self) -> list[Part]:
        """The message is over. A call without any arguments is one with none."""
        parts: list[Part] = []
        called = self._in_call or self._called
        if called is not None:
            if self._in_call is None:
                parts = [self._calls.begin(called.name), self._calls.more("{}")]
            elif called.text_parameter is not None:
                parts = [self._calls.more('"}')]
            self._calls.end()
        self._in_call = self._called = None
        self._message = Opened()
        return parts

    def end(self, cut: bool) -> Sequence[Part]:
        """The answer is over. What the model has ended itself is whole, also without the mark of that."""
        parts = [] if cut else self.close()
        return parts if self._answer is None else [*parts, *self._answer.end(cut)]

    def _begun_call(self, called: Called, text: str) -> list[Part]:
        if called.text_parameter is not None:
            self._in_call, self._called = called, None
            begun = f'{{{json.dumps(called.text_parameter)}: "'
            return [self._calls.begin(called.name), self._calls.more(begun + _argument(text, called))]
        if text.isspace():
            self._blanks.append(text)
            return []
        self._called = None
        if not text.lstrip().startswith("{"):
            return [Content("".join(self._blanks) + text)]
        self._in_call = called
        return [self._calls.begin(called.name), self._calls.more(text.lstrip())]


def _argument(text: str, called: Called) -> str:
    """Of the call's JSON: the text itself, or inside a string."""
    return text if called.text_parameter is None else json.dumps(text, ensure_ascii=False)[1:-1]
