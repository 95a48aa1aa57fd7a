"""A chat with a server: one question and its answer, or as many as a person has. Used by app/commands/chat.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import final

import attrs
import httpcore2
import trio

from app.api_client.client import ApiClient
from app.api_client.models import chosen_model, model_names
from app.api_client.place import Place
from app.commands.chat_answer import Answer, hear
from app.commands.chat_conversation import Conversation
from app.commands.chat_input import ReadLine, read_text
from app.commands.chat_line import HELP, Mistake, Order, Say, read_line
from app.commands.chat_printer import Printer
from app.commands.interruption import STATUS, unless_interrupted
from app.commands.sampling_flags import NAMES, read_setting
from protocol.errors import BadRequestError, TrillmError

SERVERS_OWN = "the server's own"
CUT = "cut off: the answer has as many tokens as it may (max_tokens, or the model's context)"

Run = Callable[[Callable[[], Awaitable[object]]], bool]
"""Runs it to its end; false if Ctrl-C came before."""


def run_with_trio(work: Callable[[], Awaitable[object]]) -> bool:
    return trio.run(unless_interrupted, work)


@final
@attrs.define
class ChatSession:
    place: Place
    model: str
    """Empty until `find_model`."""
    conversation: Conversation
    sampling: dict[str, float | int]
    printer: Printer
    tells_figures: bool = True
    figures: str = ""
    """Of the last answer."""
    is_cut: bool = False
    """The last answer was, by a limit."""
    notes_cuts: bool = True
    """Shown with the answer; otherwise it is for who asked to say."""
    backend: httpcore2.AsyncNetworkBackend | None = None
    """Tests bring their own."""

    async def find_model(self) -> None:
        """Raises NotFoundError, NoAnswerError and RefusedError."""
        async with self._client() as client:
            self.model = await chosen_model(client, self.model or None)

    async def answer(self) -> None:
        """The question that was asked last. What of the answer has come is kept, whatever ends it. Raises NoAnswerError
        and RefusedError."""
        body = {
            "model": self.model,
            "messages": self.conversation.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.sampling,
        }
        answer = Answer(trio.current_time())
        self.printer.wait()
        try:
            async with self._client() as client, client.open_stream("/v1/chat/completions", body) as stream:
                await hear(stream, answer, self.printer)
        finally:
            for name, arguments in answer.calls.values():
                self.printer.call(name, arguments)
            self.printer.end()
            self.conversation.answered(answer.text)
            self.figures = answer.figures()
        self.is_cut = answer.finish_reason == "length"
        if self.is_cut and self.notes_cuts:
            self.printer.note(CUT)
        if self.tells_figures and self.figures:
            self.printer.note(self.figures)

    async def show_models(self) -> None:
        async with self._client() as client:
            for name in await model_names(client):
                self.printer.note(f"{'*' if name == self.model else ' '} {name}")

    def _client(self) -> ApiClient:
        return ApiClient(self.place, backend=self.backend)


def talk(session: ChatSession, ask: ReadLine, run: Run = run_with_trio) -> int:
    """Until a person leaves. The exit status."""
    printer = session.printer
    was_interrupted = False
    while True:
        try:
            text = read_text(ask)
        except EOFError:
            printer.note("")
            return 0
        except KeyboardInterrupt:
            printer.end()
            if was_interrupted:
                return STATUS
            printer.note("\nCtrl-C once more leaves; so does Ctrl-D")
            was_interrupted = True
            continue
        try:
            was_over = _do(session, text, run)
        except KeyboardInterrupt:  # before trio has taken the signal over, or after
            was_over = None
        if was_over is False:
            return 0
        was_interrupted = was_over is None
        if was_interrupted:
            printer.note("\nstopped; Ctrl-C once more leaves")


def _do(session: ChatSession, text: str, run: Run) -> bool | None:
    """False to leave, None if it was interrupted."""
    printer = session.printer
    try:
        if has_strange_bytes(text):
            raise BadRequestError("that has bytes which are no text in UTF-8")
        match read_line(text):
            case Say(""):
                return True
            case Say(said):
                session.conversation.ask(said)
                return _answer(session, run)
            case Mistake(sentence):
                printer.note(sentence)
            case Order("/quit"):
                return False
            case Order("/regenerate"):
                session.conversation.ask_again()
                return _answer(session, run)
            case Order("/model", rest):
                return _change_model(session, rest, run)
            case Order(word, rest):
                _obey(session, word, rest)
    except TrillmError as error:
        printer.end()
        printer.note(error.message)
    return True


def has_strange_bytes(text: str) -> bool:
    """What a terminal gives that is no character in UTF-8; nothing of it can be sent or saved."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _answer(session: ChatSession, run: Run) -> bool | None:
    was_over = run(session.answer)
    if was_over:
        session.printer.gap()
    return was_over or None


def _change_model(session: ChatSession, name: str, run: Run) -> bool | None:
    if not name:
        return run(session.show_models) or None
    before, session.model = session.model, name
    try:
        was_over = run(session.find_model)
    except TrillmError:
        session.model = before
        raise
    session.printer.note(f"from now on {session.model} answers")
    return was_over or None


def _obey(session: ChatSession, word: str, rest: str) -> None:
    conversation, printer = session.conversation, session.printer
    match word:
        case "/help":
            printer.note(HELP)
        case "/clear":
            conversation.clear()
            printer.note("forgotten")
        case "/system" if not rest:
            printer.note(conversation.system or "there is no system prompt")
        case "/system":
            conversation.system = None if rest == "none" else rest
            printer.note("from the next question on")
        case "/set":
            _set(session, rest)
        case "/save":
            printer.note(_save(conversation, Path(rest).expanduser()))


def _set(session: ChatSession, rest: str) -> None:
    if not rest:
        width = max(map(len, NAMES))
        told = "\n".join(f"{name:<{width}}  {session.sampling.get(name, SERVERS_OWN)}" for name in NAMES)
        session.printer.note(told)
        return
    name, _, text = rest.replace("=", " ", 1).partition(" ")
    field, value = read_setting(name, text.strip())
    if value is None:
        session.sampling.pop(field, None)
        session.printer.note(f"{field} is {SERVERS_OWN}")
    else:
        session.sampling[field] = value
        session.printer.note(f"{field} is {value}")


def _save(conversation: Conversation, path: Path) -> str:
    """What came of it."""
    data = conversation.as_json() if path.suffix == ".json" else conversation.as_markdown().encode()
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return f"{path} exists already: name another file"
    except (OSError, ValueError) as error:
        return f"{path} cannot be written: {error}"
    return f"saved in {path}"
