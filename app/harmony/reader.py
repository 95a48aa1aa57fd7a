"""From a choice's outputs to its parts, by their tokens. A ChoiceReader, made by app/harmony/harmony.py.

What a client may see is an output's text alone: stop strings cut it inside tokens, and it waits for what may become
one. The tokens say what each character of it belongs to; so nothing is told that the text does not have, nor of a
message that begins behind its end.
"""

from __future__ import annotations

from collections import deque

from app.choice_reader import Wanted, merged
from app.harmony.message_parts import MessageParts
from app.harmony.token_places import Closed, Event, Opened, Skipped, TokenPlaces, Told
from app.parts import Part
from protocol.messages import FinishReason, RequestOutput


class HarmonyReader:
    """Of one choice. Pure."""

    def __init__(self, places: TokenPlaces, parts: MessageParts, wanted: Wanted) -> None:
        self._places = places
        self._parts = parts
        self._wanted = wanted
        self._events: deque[Event] = deque()
        """What the text has not come to yet."""
        self._text = ""
        self.num_reasoning_tokens = 0
        """Those in the bodies of thoughts, whether or not they are told."""
        if places.message is not None:
            parts.open(places.message)

    def feed(self, output: RequestOutput) -> list[Part]:
        for token_id in output.token_ids:
            is_thought = self._parts.is_thought(self._places.message)
            self._events += self._places.process(token_id)
            self.num_reasoning_tokens += is_thought and self._parts.is_thought(self._places.message)
        self._text += output.text
        reason = output.finish_reason
        if reason is not None:
            self._events += self._places.end()
        parts = self._told()
        if reason is not None:
            parts += self._parts.body(self._text)
            parts += self._parts.end(cut=reason != FinishReason.STOP)
        return merged(self._wanted.of(parts))

    def finish_reason(self, reason: str) -> str:
        return self._wanted.finish_reason(reason, self._parts.whole_calls)

    def _told(self) -> list[Part]:
        """All that the text has come to."""
        parts: list[Part] = []
        at = 0
        while self._events:
            match self._events[0]:
                case Opened() as message:
                    self._parts.open(message)
                case Closed():
                    parts += self._parts.close()
                case Told(count) | Skipped(count) as span:
                    piece = self._text[at : at + count]
                    at += len(piece)
                    if isinstance(span, Told):
                        parts += self._parts.body(piece)
                    if len(piece) < count:
                        self._events[0] = type(span)(count - len(piece))
                        break
            self._events.popleft()
        self._text = self._text[at:]
        return parts
