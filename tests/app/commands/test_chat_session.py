"""A chat with a server: what is asked, shown and kept."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from app.api_client.call_error import NoAnswerError, RefusedError
from app.commands.chat_conversation import Conversation, Turn
from app.commands.chat_printer import Printer
from app.commands.chat_session import ChatSession, talk
from app.commands.sampling_flags import SamplingFlags
from protocol.errors import BadRequestError
from tests.helpers.asked_servers import DONE, chunk, event, open_network, place, serves
from tests.helpers.fake_upstreams import FakeUpstream, Script, Talk, breaks_off

USAGE = event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2})


@asynccontextmanager
async def open_session(script: Script, *, is_terminal: bool = True, has_styles: bool = False):
    out = io.StringIO()
    async with open_network(script) as (network, server):
        printer = Printer(out, is_terminal=is_terminal, has_styles=has_styles)
        yield ChatSession(place(), "first", Conversation(), {"seed": 1}, printer, backend=network), server, out


def asked(server: FakeUpstream) -> dict[str, object]:
    return json.loads(server.had[-1].body)


async def test_an_answer_is_shown_and_kept_with_its_figures() -> None:
    script = serves(chunk("Hel"), chunk("lo"), chunk(finish_reason="stop"), USAGE, DONE)
    async with open_session(script) as (session, server, out):
        session.conversation.ask("hi")
        await session.answer()
    assert out.getvalue().startswith("Hello\n2 tokens")
    assert "prompt of 9" in out.getvalue()
    assert session.conversation.messages == [Turn("user", "hi"), Turn("assistant", "Hello")]
    assert asked(server)["messages"] == [{"role": "user", "content": "hi"}]
    assert asked(server)["seed"] == 1


async def test_a_pipe_gets_the_text_and_nothing_else() -> None:
    thought = event(choices=[{"delta": {"reasoning": "hm"}}])
    script = serves(thought, chunk("\x1b[1mHi"), chunk(finish_reason="length"), USAGE, DONE)
    async with open_session(script, is_terminal=False, has_styles=True) as (session, _, out):
        session.conversation.ask("hi")
        await session.answer()
    assert out.getvalue() == "\x1b[1mHi\n"


async def test_a_terminal_is_not_commanded_by_a_model() -> None:
    script = serves(chunk("\x1b]0;title\x07a\x9b2J\r\nb\u202e\u2066\tc"), chunk(finish_reason="stop"), DONE)
    async with open_session(script) as (session, _, out):
        session.conversation.ask("hi")
        await session.answer()
    assert out.getvalue().startswith("]0;titlea2J\nb\tc\n")


async def test_thoughts_are_dim_and_calls_are_told() -> None:
    script = serves(
        event(choices=[{"delta": {"reasoning_content": "hm"}}]),
        chunk("Hi"),
        event(choices=[{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]}}]),
        event(choices=[{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}}]),
        chunk(finish_reason="tool_calls"),
        DONE,
    )
    async with open_session(script, has_styles=True) as (session, _, out):
        session.conversation.ask("hi")
        session.tells_figures = False
        await session.answer()
    assert out.getvalue() == "\x1b[2m…\x1b[0m\r\x1b[K\x1b[2mhm\x1b[0m\n\nHi\n\x1b[2mcalls f({})\x1b[0m\n"


async def test_an_answer_that_breaks_off_is_told_and_kept() -> None:
    async def breaks_in_the_midst(talk: Talk) -> None:
        await talk.head(content_type="text/event-stream")
        await talk.data(chunk("half"))
        await breaks_off(talk)

    async with open_session(breaks_in_the_midst) as (session, _, out):
        session.conversation.ask("hi")
        with pytest.raises(NoAnswerError, match="broke off"):
            await session.answer()
    assert out.getvalue() == "half\n"
    assert session.conversation.messages[-1] == Turn("assistant", "half")


async def test_a_failure_that_a_chunk_tells_is_no_end_of_an_answer() -> None:
    fails = chunk(finish_reason="error", error={"message": "lost\x1b"})
    async with open_session(serves(chunk("half"), fails, DONE), is_terminal=False) as (session, _, out):
        session.conversation.ask("hi")
        with pytest.raises(RefusedError, match=r"the server ended the answer: lost$"):
            await session.answer()
    assert out.getvalue() == "half\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_no_request_can_say_is_refused(value: float) -> None:
    with pytest.raises(BadRequestError, match="--top-p must be a number with an end"):
        SamplingFlags(top_p=value).fields()


async def test_a_question_that_is_refused_is_not_repeated() -> None:
    async def refuses_it(talk: Talk) -> None:
        await talk.whole({"error": {"message": "too long"}}, 400)

    async with open_session(refuses_it) as (session, _, _):
        session.conversation.ask("hi")
        with pytest.raises(RefusedError, match="too long"):
            await session.answer()
    assert session.conversation.messages == []


async def test_leaving_an_answer_closes_the_connection_and_keeps_what_came() -> None:
    async def goes_on(talk: Talk) -> None:
        await talk.head(content_type="text/event-stream")
        await talk.data(chunk("half"))
        await trio.sleep_forever()

    async with open_session(goes_on) as (session, server, out), trio.open_nursery() as nursery:
        session.conversation.ask("hi")
        nursery.start_soon(session.answer)
        await trio.testing.wait_all_tasks_blocked()
        assert out.getvalue() == "half"
        nursery.cancel_scope.cancel()
    assert server.num_left == 1
    assert session.conversation.messages[-1] == Turn("assistant", "half")


def talked(session: ChatSession, lines: list[str | type[BaseException]], answers: list[str | None]) -> int:
    """With these lines typed, and answers told by nobody; None is interrupted."""
    left: Iterator[str | type[BaseException]] = iter(lines)
    told = iter(answers)

    def ask(_: str) -> str:
        line = next(left, EOFError)
        if isinstance(line, str):
            return line
        raise line

    def run(work: object) -> bool:
        text = next(told)
        session.conversation.answered(text or "")
        return text is not None

    return talk(session, ask, run)


def session_on(out: io.StringIO) -> ChatSession:
    return ChatSession(place(), "first", Conversation(), {}, Printer(out, is_terminal=True, has_styles=False))


def test_a_conversation_is_repeated_with_each_question() -> None:
    session = session_on(io.StringIO())
    assert talked(session, ["/system Be brief.", "a", "b", "/regenerate"], ["A", "B", "C"]) == 0
    assert session.conversation.messages == [
        Turn("system", "Be brief."),
        Turn("user", "a"),
        Turn("assistant", "A"),
        Turn("user", "b"),
        Turn("assistant", "C"),
    ]


def test_bytes_that_are_no_text_cost_no_conversation(tmp_path: Path) -> None:
    out = io.StringIO()
    session = session_on(out)
    saved = tmp_path / "said.md"
    assert talked(session, ["one", "\udcff", "/system \udcff", f"/save {saved}"], ["first"]) == 0
    assert out.getvalue().count("that has bytes which are no text in UTF-8") == 2
    assert saved.read_text() == "**user**\n\none\n\n**assistant**\n\nfirst\n"


def test_an_unanswered_question_can_be_asked_again() -> None:
    session = session_on(io.StringIO())
    talked(session, ["a", "/regenerate"], [None, "A"])
    assert session.conversation.messages == [Turn("user", "a"), Turn("assistant", "A")]


def test_regenerating_after_a_refusal_leaves_the_answers_before_it() -> None:
    session = session_on(io.StringIO())
    talked(session, ["a", "b", "/regenerate"], ["A", None, "B"])
    assert [turn.content for turn in session.conversation.messages] == ["a", "A", "b", "B"]


def test_ctrl_c_twice_leaves_and_once_does_not() -> None:
    out = io.StringIO()
    assert talked(session_on(out), [KeyboardInterrupt, "a", KeyboardInterrupt, KeyboardInterrupt, "b"], ["A"]) == 130
    assert "Ctrl-C once more leaves" in out.getvalue()
    assert "stopped" not in out.getvalue()
    assert talked(session_on(out), ["a", KeyboardInterrupt], [None]) == 130
    assert "stopped; Ctrl-C once more leaves" in out.getvalue()


def test_stopping_one_answer_after_another_loses_no_conversation() -> None:
    session = session_on(io.StringIO())
    assert talked(session, ["a", "b", "c", "d"], [None, None, None, "D"]) == 0
    assert session.conversation.messages[-1] == Turn("assistant", "D")


async def test_a_cut_answer_says_so_once() -> None:
    script = serves(chunk("Hi"), chunk(finish_reason="length"), DONE)
    async with open_session(script) as (session, _, out):
        session.conversation.ask("hi")
        await session.answer()
        assert out.getvalue().count("cut off") == 1
        session.notes_cuts = False
        session.conversation.ask_again()
        await session.answer()
    assert session.is_cut
    assert out.getvalue().count("cut off") == 1


def test_commands_change_what_is_sent_and_say_so(tmp_path: Path) -> None:
    out = io.StringIO()
    session = session_on(out)
    lines = ["a", "/set temperature 0.5", "/set top_k=3", "/set top_k none", "/set", "/set x 1", "/hlep", "/quit", "b"]
    assert talked(session, lines, ["A"]) == 0
    assert session.sampling == {"temperature": 0.5}
    assert "temperature         0.5\n" in out.getvalue()
    assert "top_k               the server's own\n" in out.getvalue()
    assert "did you mean /help?" in out.getvalue()


def test_a_conversation_is_saved_once(tmp_path: Path) -> None:
    out = io.StringIO()
    session = session_on(out)
    names = [str(tmp_path / "a.json"), str(tmp_path / "a.md"), str(tmp_path / "a.md"), str(tmp_path / "none" / "a.md")]
    talked(session, ["a", *(f"/save {name}" for name in names), "/clear"], ["A"])
    assert json.loads((tmp_path / "a.json").read_bytes())[1] == {"role": "assistant", "content": "A"}
    assert (tmp_path / "a.md").read_text() == "**user**\n\na\n\n**assistant**\n\nA\n"
    assert "exists already" in out.getvalue()
    assert "cannot be written" in out.getvalue()
    assert session.conversation.messages == []
