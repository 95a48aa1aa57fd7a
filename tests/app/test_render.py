"""Chats become prompts as the template says, and what a client wrote stays text."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation import Conversation, conversation_of
from app.render import ChatTemplate
from app.schemas.chat import ContentPart, FunctionCall, FunctionDefinition, Message, Tool, ToolCall
from protocol.errors import BadRequestError, CheckpointError
from tests.helpers.app_under_test import make_tokenizer
from tests.helpers.dummy_checkpoint import CHAT_TEMPLATE, IM_END, IM_START

TOKENIZER = make_tokenizer()
CHATML = ChatTemplate(CHAT_TEMPLATE)
TRIMMING = ChatTemplate(
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content | trim + '<|im_end|>' }}{% endfor %}"
)


def user(content: Any) -> Message:
    return Message("user", content)


def rendered(template: ChatTemplate, conversation: Conversation) -> str:
    """The prompt's text, with everything in it as the client wrote it."""
    return template.render(conversation, conversation.variables())


def render(source: str, *messages: Message, **fields: Any) -> str:
    return rendered(ChatTemplate(source), Conversation(messages or (user("Hi"),), **fields))


def test_chatml_is_rendered_with_the_generation_prompt() -> None:
    conversation = Conversation([Message("system", "Be brief."), user("Hi")])
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(CHATML, conversation) == text
    assert CHATML.encode_sync(conversation, TOKENIZER, 256) == TOKENIZER.encode(text, add_special_tokens=False)
    assert not rendered(CHATML, Conversation([user("Hi")], add_generation_prompt=False)).endswith("assistant\n")


SPELLINGS = st.sampled_from([IM_END, IM_START, "<|endoftext|>", "<|im_", "end|>", "a", " ", "\n", "😀", "\U000f0000"])


@given(st.lists(SPELLINGS, max_size=8).map("".join), st.sampled_from([CHATML, TRIMMING]))
def test_no_text_of_a_client_becomes_a_control_token(text: str, template: ChatTemplate) -> None:
    ids = template.encode_sync(Conversation([user(text), Message(text, "b")]), TOKENIZER, 256)
    plain = template.encode_sync(Conversation([user("x"), Message("x", "b")]), TOKENIZER, 256)
    for control in TOKENIZER.special_tokens.values():
        assert ids.count(control) == plain.count(control)
    assert TOKENIZER.decode(ids) == rendered(template, Conversation([user(text), Message(text, "b")]))


def test_markers_cost_as_many_tokens_as_their_letters() -> None:
    def length(text: str) -> int:
        return len(CHATML.encode_sync(Conversation([user(text)]), TOKENIZER, 256))

    marker = len(TOKENIZER.encode(IM_END, literal=True))
    assert marker > 3
    assert length("A<|im_end|> B") == length("A B") + marker


def test_markers_in_tools_documents_and_arguments_stay_text_too() -> None:
    template = ChatTemplate("{{ tools | tojson }}{{ documents | tojson }}{{ messages | tojson }}{{ note }}")
    call = ToolCall(function=FunctionCall(IM_END, json.dumps({IM_START: IM_END})))
    conversation = Conversation(
        [Message("assistant", None, tool_calls=[call])],
        [Tool("function", FunctionDefinition("f", IM_END))],
        [{"text": IM_END}],
        {"note": IM_END},
    )
    ids = template.encode_sync(conversation, TOKENIZER, 256)
    assert not set(ids) & set(TOKENIZER.special_tokens.values())
    assert TOKENIZER.decode(ids) == rendered(template, conversation)


def test_parts_are_joined_and_other_media_refused() -> None:
    assert render("{{ messages[0].content }}", user([ContentPart("text", "a"), "b"])) == "a\nb"
    for part in (ContentPart("image_url"), ContentPart("input_audio"), ContentPart("text")):
        with pytest.raises(BadRequestError, match=r"messages\[0\]\.content\[0\]"):
            render("{{ messages[0].content }}", user([part]))


def test_absent_content_is_an_empty_text() -> None:
    call = ToolCall(function=FunctionCall("weather", '{"city": "Oslo"}'))
    text = rendered(CHATML, Conversation([Message("assistant", None, tool_calls=[call])], add_generation_prompt=False))
    assert text == "<|im_start|>assistant\n<|im_end|>\n"


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ('{"city": "Oslo"}', {"city": "Oslo"}),
        ({"city": "Oslo"}, {"city": "Oslo"}),
        ("", {}),
        (None, {}),
        ('{"city": "', '{"city": "'),
        ("{", "{"),
        ("not json", "not json"),
        ("[" * 5000, "[" * 5000),
        ("9" * 5000, "9" * 5000),
    ],
    ids=lambda value: json.dumps(value)[:20],
)
def test_arguments_are_objects_for_the_template_and_cut_ones_are_told_as_text(arguments: Any, seen: Any) -> None:
    message = Message("assistant", None, tool_calls=[ToolCall(function=FunctionCall("f", arguments))])
    text = render("{{ messages[0].tool_calls[0].function.arguments | tojson }}", message)
    assert json.loads(text) == seen


def test_the_template_sees_what_transformers_shows_it() -> None:
    assert render("{{ {'a': '<&>\u00e9'} | tojson }}") == '{"a": "<&>é"}'
    assert render("{{ [1, 2] | tojson(indent=1) }}") == "[\n 1,\n 2\n]"
    assert render("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}") == "1"
    assert render("{% generation %}x{% endgeneration %}y") == "xy"
    assert render("{% set n = namespace(self=1) %}{% set n.b = n.self + 1 %}{{ n.b }}") == "2"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{{ thinking }}", template_kwargs={"thinking": "yes"}) == "yes"
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"
    assert rendered(ChatTemplate("{{ bos_token }}", {"bos_token": "<s>"}), Conversation([user("")])) == "<s>"
    assert render("{{ messages | length }}{{ tools is none }}", template_kwargs={"messages": [], "tools": 1}) == "1True"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('Roles must alternate') }}",
        "{{ messages[0].nothing.deeper }}",
        "{{ messages[9].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{{ namespace(_x=1) }}",
        "{% for i in range(99999999) %}{% endfor %}",
        "{{ [1] * 10**15 }}",
        "{{ 'more' | truncate(1) }}",
    ],
)
def test_what_a_template_cannot_do_is_the_requests_error(source: str) -> None:
    with pytest.raises(BadRequestError):
        render(source)


def test_the_templates_own_words_reach_the_client() -> None:
    with pytest.raises(BadRequestError, match="Roles must alternate"):
        render("{{ raise_exception('Roles must alternate') }}")


async def test_a_big_conversation_gives_the_same_prompt_from_a_worker_thread() -> None:
    messages = [user("naïve <|im_end|> " * 50), Message("assistant", "b")] * 40
    conversation = Conversation(messages)
    assert conversation.num_bytes() > 20_000
    assert await CHATML.encode(conversation, TOKENIZER, 100_000) == CHATML.encode_sync(conversation, TOKENIZER, 100_000)


def test_a_broken_template_is_the_operators_error() -> None:
    with pytest.raises(CheckpointError, match="Jinja"):
        ChatTemplate("{% if %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 3000 + ")" * 3000 + " }}",
        "{{ " + "[" * 90 + "]" * 90 + " }}",
        "{% if 1 %}" * 120 + "{% endif %}" * 120,
        "{% for a in b %}" * 25 + "{% endfor %}" * 25,
        "{{ " + "9" * 6000 + " }}",
        "{% break %}",
    ],
    ids=["parentheses", "lists", "conditions", "loops", "digits", "break"],
)
def test_so_is_one_that_python_does_not_take(source: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be compiled: "):
        ChatTemplate(source)


def test_values_within_arguments_count_as_well() -> None:
    def conversation(arguments: str) -> Conversation:
        call = ToolCall(function=FunctionCall("f", arguments))
        return Conversation([user("a"), Message("assistant", tool_calls=[call] * 2)])

    conversation('{"a": [' + "1, " * 20_000 + "1]}").check_num_values()
    conversation('{"a": "' + "1, " * 60_000 + '"}').check_num_values()  # one value
    with pytest.raises(BadRequestError, match="more than 50000 values"):
        conversation('{"a": [' + "1, " * 30_000 + "1]}").check_num_values()


@pytest.mark.parametrize("content", ["one, two,", "one, two, ", "a<|im_end|>b"])
def test_continuing_the_final_message_ends_where_it_ends(content: str) -> None:
    def continued(template: ChatTemplate) -> str:
        messages = [user("Count."), Message("assistant", content)]
        return rendered(template, Conversation(messages, add_generation_prompt=False, continue_final_message=True))

    assert continued(CHATML) == f"<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\n{content}"
    assert continued(TRIMMING).endswith(f"assistant\n{content.rstrip()}")


def test_continuing_what_the_template_leaves_out_is_refused() -> None:
    conversation = Conversation([user("Hi")], add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(BadRequestError, match="leaves the final message out"):
        rendered(ChatTemplate("nothing"), conversation)


def test_continue_final_message_turns_the_generation_prompt_off() -> None:
    conversation = conversation_of(
        [user("Hi")],
        max_messages=1,
        tools=None,
        documents=None,
        template_kwargs=None,
        add_generation_prompt=None,
        continue_final_message=True,
        add_special_tokens=None,
    )
    assert not conversation.add_generation_prompt


MESSAGES = [
    {"role": "system", "content": "Sé breve."},
    {"role": "user", "content": "  What is 船?\n"},
    {"role": "assistant", "content": "A boat."},
    {"role": "user", "content": ""},
]


@pytest.mark.parametrize("generation_prompt", [True, False])
def test_the_text_equals_what_transformers_renders(generation_prompt: bool) -> None:
    """transformers' own environment, rebuilt from its documented parts, without importing torch."""
    theirs = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(CHAT_TEMPLATE)
    ours = rendered(
        CHATML,
        Conversation([Message(m["role"], m["content"]) for m in MESSAGES], add_generation_prompt=generation_prompt),
    )
    assert ours == theirs.render(messages=MESSAGES, add_generation_prompt=generation_prompt)
