"""What the dialects with calls as JSON have in common: text outside of calls, and one call at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from app.dialects.json_call import JsonCall, State
from app.dialects.markers import Markers
from app.dialects.told_calls import ToldCalls
from app.parts import CallPiece, Content, Part


class CallText(ABC):
    """A TextParser. A dialect says in `outside` what begins a call.

    Text that only looks like a call is content, as it was written. A call whose text ends before its arguments begin is
    content too, but left out if a limit cut it: half a mark-up is no answer. A call that has begun stays one; if it is
    not whole, the finish reason does not become "tool_calls". Blanks around calls are left out, where no other text is.
    """

    def __init__(self, calls: ToldCalls, markers: Markers, hidden: Collection[str]) -> None:
        """`hidden` are the markers that are control tokens: they are never content."""
        self._calls = calls
        self._markers = markers
        self._hidden = frozenset(hidden)
        self._call: JsonCall | None = None
        self._opening = ""
        """What came before the object of the call that is being read: told as content if it is none."""
        self.rest = ""
        """Text that cannot be judged yet; shorter than some mark-up."""
        self._blanks: list[str] = []
        """Before any text, or after a call: told once other text follows."""
        self._parts: list[Part] = []
        self.told_text = False
        """Whether content was told since the last call."""
        self.waits = False
        self.is_cut = False
        """Known at the end only."""

    @property
    def whole_calls(self) -> Sequence[bool]:
        return self._calls.whole

    def feed(self, text: str) -> list[Part]:
        self._read(self.rest + text, final=False)
        return self.told()

    def end(self, cut: bool) -> list[Part]:
        self.is_cut = cut
        self._read(self.rest, final=True)
        if self._call is not None and not self._call.begun and not cut:
            self._refuse(self._call)
        if not self._calls.whole:
            self._parts += [Content(blank) for blank in self._blanks]
        self._blanks = []
        return self.told()

    @abstractmethod
    def outside(self, text: str, at: int, final: bool) -> int:
        """Reads on from `at`, outside of calls; where it stopped. Sets `waits` if the rest cannot be judged yet, which
        never is so for the `final` text."""

    @abstractmethod
    def after_call(self, as_expected: bool) -> None:
        """What may have been a call is over; `as_expected` if it was one to its end."""

    def content(self, text: str) -> None:
        if not text:
            return
        if not self.told_text and text.isspace():
            self._blanks.append(text)
            return
        self._parts += [Content(each) for each in (*self._blanks, text)]
        self._blanks = []
        self.told_text = True

    def drop_blanks(self) -> None:
        """What was between calls belongs to the mark-up."""
        self._blanks = []

    def plain(self, text: str, at: int, final: bool) -> tuple[int, str | None]:
        """Content up to the next marker: where it ends, and that marker. Without one it waits for more."""
        found = self._markers.find(text, at, final)
        self.content(text[at : found.start])
        self.waits = found.marker is None
        return found.start, found.marker

    def open_call(self, opening: str, name: str | None = None) -> None:
        """An object is expected next, after a mark-up that is told as content if none comes. With a `name`, which has
        to be a function's, it is the arguments."""
        self._call = JsonCall(self._calls, name)
        self._opening = opening

    def mark_up(self, marker: str) -> None:
        """A marker that stands for nothing."""
        self.content("" if marker in self._hidden else marker)

    def tell(self, pieces: Sequence[CallPiece]) -> None:
        self._parts += pieces

    def told(self) -> list[Part]:
        """What has come together since the last time."""
        parts, self._parts = self._parts, []
        return parts

    def _read(self, text: str, final: bool) -> None:
        at = 0
        self.waits = False
        while at < len(text) and not self.waits:
            at = self._inside(self._call, text, at) if self._call is not None else self.outside(text, at, final)
        self.rest = text[at:]

    def _inside(self, call: JsonCall, text: str, at: int) -> int:
        at = call.take(text, at)
        if call.begun:
            self.drop_blanks()
            self._parts += call.pieces
            call.pieces = []
        if call.state is State.OPEN:
            return at
        if call.state is State.REFUSED:
            self._refuse(call)
        else:
            self._call = None
            self.told_text = False
        self.after_call(call.state is State.DONE)
        return at

    def _refuse(self, call: JsonCall) -> None:
        self._call = None
        opening = self._opening
        for marker in self._hidden:
            opening = opening.replace(marker, "")
        self.content(opening + call.held)
