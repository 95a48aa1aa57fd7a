"""`trillm chat`: talk to a model in the terminal, or ask one question."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import trio
from cyclopts import Group, Parameter

from app.commands.closed_output import nobody_reads
from app.commands.ending import status_of
from app.commands.interruption import STATUS, unless_interrupted
from app.commands.sampling_flags import ChatSamplingFlags
from app.commands.server_flags import ServerFlags
from app.logs import takes_colours
from app.own_command import own_command
from protocol.errors import BadRequestError

if TYPE_CHECKING:
    from app.api_client.place import Place
    from app.commands.chat_session import ChatSession

CHAT = Group("Chat", sort_key=0)
MOST_INPUT = 16 << 20
"""Bytes read from standard input."""


def chat(
    prompt: Annotated[str | None, Parameter(group=CHAT, show_default=False)] = None,
    /,
    *,
    quick: Annotated[str | None, Parameter(name=("--quick", "-q"), group=CHAT, show_default=False)] = None,
    model_name: Annotated[
        str | None, Parameter(name=("--model-name", "--model"), group=CHAT, show_default=False)
    ] = None,
    system_prompt: Annotated[str | None, Parameter(group=CHAT, show_default=False)] = None,
    quiet: Annotated[bool, Parameter(group=CHAT, negative=(), show_default=False)] = False,
    stats: Annotated[bool, Parameter(group=CHAT, negative=(), show_default=False)] = False,
    sampling: Annotated[ChatSamplingFlags | None, Parameter(name="*")] = None,
    server: Annotated[ServerFlags | None, Parameter(name="*")] = None,
) -> int:
    """Talk to a model in the terminal, or ask one question.

    With a PROMPT, or with text on standard input, one answer is written and that is all: into a pipe or file nothing
    but its text. Any server with the OpenAI API will do. In a conversation /help lists what else can be said; what is
    typed is kept in ~/.local/state/trillm/chat_history.

        trillm chat
        trillm chat "What is a trireme?"
        git diff | trillm chat "Summarise these changes" --max-tokens 200
        trillm chat --base-url https://llm.example.org --system-prompt "In French."

    Exit status: 0 after an answer (also one that --max-tokens cuts), 1 if there was none or it broke off, 130 after
    Ctrl-C.

    Parameters
    ----------
    prompt
        The question. Text on standard input is added to it.
    quick
        The question, as `vllm chat` has it.
    model_name
        Which of the server's models. Default: its first.
    system_prompt
        What the model is told before all questions.
    quiet
        No figures after answers.
    stats
        Figures after an answer also where it is written into a pipe or file (on standard error).
    """
    place = (server or ServerFlags()).place()
    fields = (sampling or ChatSamplingFlags()).fields()
    return status_of(
        lambda: _chat(
            prompt if quick is None else quick,
            model_name,
            system_prompt,
            fields,
            place,
            is_quiet=quiet,
            tells_figures=stats,
        )
    )


def _chat(
    prompt: str | None,
    model: str | None,
    system: str | None,
    sampling: dict[str, float | int],
    place: Place,
    *,
    is_quiet: bool,
    tells_figures: bool,
) -> int:
    from app.commands.chat_conversation import Conversation
    from app.commands.chat_input import open_line_editor
    from app.commands.chat_printer import Printer
    from app.commands.chat_session import ChatSession, talk

    is_terminal = sys.stdout.isatty()
    question = _question(prompt)
    session = ChatSession(
        place=place,
        model=model or "",
        conversation=Conversation(system),
        sampling=sampling,
        printer=Printer(sys.stdout, is_terminal=is_terminal, has_styles=takes_colours(os.environ)),
        tells_figures=not is_quiet,
    )
    if question is not None:
        return _ask_once(session, question, tells_figures and not is_terminal)
    if not is_terminal:
        as_here = f'{own_command("chat")} "…"'
        raise BadRequestError(f"for a conversation both ends must be a terminal: give a question, as {as_here}")
    if not trio.run(unless_interrupted, session.find_model):
        return STATUS
    session.printer.note(f"{session.model} at {session.place}. /help lists commands, Ctrl-D leaves.")
    with open_line_editor() as ask:
        return talk(session, ask)


def _question(prompt: str | None) -> str | None:
    """Of the command line and standard input; None for a conversation. Raises BadRequestError for what is no text."""
    if sys.stdin is None or sys.stdin.isatty():
        return prompt or None
    try:
        data = sys.stdin.buffer.read(MOST_INPUT + 1)
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadRequestError(f"standard input is no text in UTF-8: {error}") from error
    if len(data) > MOST_INPUT:
        raise BadRequestError(f"standard input has more than {MOST_INPUT} bytes")
    parts = [part for part in (prompt, text.strip()) if part]
    if not parts:
        as_here = f'{own_command("chat")} "…"'
        raise BadRequestError(f"there is no question: neither on the command line, as {as_here}, nor on stdin")
    return "\n\n".join(parts)


def _ask_once(session: ChatSession, question: str, tells_figures: bool) -> int:
    from app.commands.chat_session import CUT

    session.notes_cuts = False

    async def ask() -> None:
        await session.find_model()
        session.conversation.ask(question)
        await session.answer()

    try:
        was_over = trio.run(unless_interrupted, ask)
    except BrokenPipeError:
        return nobody_reads()
    if session.is_cut:
        print(f"trillm: {CUT}", file=sys.stderr)  # noqa: T201  beside the answer, which may go into a file
    if tells_figures and session.figures:
        print(session.figures, file=sys.stderr)  # noqa: T201  it is what was asked for
    return 0 if was_over else STATUS
