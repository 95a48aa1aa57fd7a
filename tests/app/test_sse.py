from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app import sse
from app.schemas.chat import ChatChunk, ChatChunkChoice, Delta
from app.schemas.completions import Completion, CompletionChoice

TEXTS = st.text() | st.sampled_from(['"content":""', '"text":""', '\\"text\\":\\"\\"', "\n\ndata: [DONE]\n\n"])


def chat_chunk(model: str, text: str) -> ChatChunk:
    choice = ChatChunkChoice(3, Delta(content=text))
    return ChatChunk(id="chatcmpl-1", created=1, model=model, system_fingerprint="x", choices=[choice], usage=None)


def completion(model: str, text: str) -> Completion:
    choice = CompletionChoice(3, text, None, None)
    return Completion(id="cmpl-1", created=1, model=model, system_fingerprint="x", choices=[choice])


@given(model=TEXTS, text=TEXTS)
def test_an_event_around_a_prepared_text_is_the_event_of_the_whole_chunk(model, text):
    chat = sse.TextEvents(chat_chunk(model, ""), "content")
    assert chat.event(text) == sse.event(chat_chunk(model, text))

    plain = sse.TextEvents(completion(model, ""), "text")
    assert plain.event(text) == sse.event(completion(model, text))
