"""What a line typed into `trillm chat` asks for. Pure; used by app/commands/chat_session.py."""

from __future__ import annotations

from difflib import get_close_matches

import attrs

from app.commands.sampling_flags import NAMES

HELP = """\
/help              this list
/system [TEXT]     show or replace the system prompt ("/system none" takes it away)
/set [NAME VALUE]  show or change how answers are sampled, as: /set temperature 0.7
/model [NAME]      show the models, or go on with another one
/regenerate        the last answer once more
/clear             forget what was said (the system prompt stays)
/save FILE         write the conversation to a new file: messages if it ends with .json, else Markdown
/quit              leave, as Ctrl-D does

Several lines: begin with \"\"\" and end with \"\"\", or end each line but the last with \\.
Ctrl-C stops an answer; twice, it leaves. A line that begins with a space is never a command."""

WORDS = ("/help", "/system", "/set", "/model", "/regenerate", "/clear", "/save", "/quit")
OTHER_NAMES = {"/exit": "/quit", "/bye": "/quit", "/q": "/quit", "/?": "/help", "/retry": "/regenerate"}
TAKE_NOTHING = ("/help", "/regenerate", "/clear", "/quit")


@attrs.frozen
class Say:
    """To the model."""

    text: str


@attrs.frozen
class Order:
    """To us: one of WORDS, and what comes after it."""

    word: str
    rest: str = ""


@attrs.frozen
class Mistake:
    """No command: a sentence that says so."""

    sentence: str


def read_line(text: str) -> Say | Order | Mistake:
    """Of all that was typed at once."""
    if not text.startswith("/") or "\n" in text.rstrip():
        return Say(text.strip())
    word, _, rest = text.strip().partition(" ")
    word, rest = OTHER_NAMES.get(word, word), rest.strip()
    if (setting := word.removeprefix("/").replace("-", "_").lower()) in NAMES:
        meant = f"/set {setting} {rest[:60] or 'VALUE'}"
        return Mistake(f"there is no command {word}: did you mean {meant}?")
    if word not in WORDS:
        near = get_close_matches(word, WORDS, 1)
        guess = f"did you mean {near[0]}?" if near else "/help lists commands"
        return Mistake(f"there is no command {word[:60]}: {guess} (with a space before it, it goes to the model)")
    if rest and word in TAKE_NOTHING:
        return Mistake(f"{word} takes nothing after it")
    if not rest and word == "/save":
        return Mistake("/save takes the name of a file")
    return Order(word, rest)
