"""A conversation as openai-harmony's messages. Pure. Used by app/harmony/template.py.

As gpt-oss's own template has it: thoughts that led to a final answer are left out, those of a turn that is still making
calls stay. What the model said before its calls goes to the commentary channel, where it was said.
"""

from __future__ import annotations

import json

import msgspec
from openai_harmony import (
    Author,
    ChannelConfig,
    DeveloperContent,
    Message,
    ReasoningEffort,
    Role,
    SystemContent,
    TextContent,
)

from app import conversation as chat
from app.checks import short
from app.harmony.hidden_texts import HiddenTexts
from app.harmony.recipients import PYTHON, Recipients
from app.harmony.tool_descriptions import ToolDescriptions
from app.schemas import chat as schemas
from protocol.errors import BadRequestError

EFFORTS = {
    **dict.fromkeys(("none", "minimal", "low"), ReasoningEffort.LOW),
    "medium": ReasoningEffort.MEDIUM,
    **dict.fromkeys(("high", "xhigh", "max"), ReasoningEffort.HIGH),
}
"""There are three of them. Who asks for less or more gets the least or the most."""
_INSTRUCTORS = ("system", "developer")


class MessageWriter:
    """Of one conversation. Raises BadRequestError for what no Harmony message can say."""

    def __init__(self, conversation: chat.Conversation, hidden: HiddenTexts, today: str) -> None:
        self._conversation = conversation
        self._hidden = hidden
        self._today = today
        tools = conversation.tools or ()
        self._recipients = Recipients([tool.function.name for tool in tools], conversation.namespaces)
        self._tools = ToolDescriptions(tools, conversation.namespaces, hidden)
        self._messages: list[Message] = []
        self._names: dict[str, str] = {}
        """Of the functions called so far, by the calls' ids."""
        self._last_name: str | None = None

    def whole(self) -> list[Message]:
        given = self._conversation.messages
        self._messages.append(Message.from_role_and_content(Role.SYSTEM, self._system()))
        num_first = next((at for at, message in enumerate(given) if message.role not in _INSTRUCTORS), len(given))
        self._add_developer([chat.content_text(given[at], at) for at in range(num_first)])
        last_final = self._last_final()
        for at in range(num_first, len(given)):
            self._add(given[at], at, thinks=at > last_final)
        return self._messages

    def _system(self) -> SystemContent:
        kwargs = self._conversation.template_kwargs
        content = SystemContent.new().with_conversation_start_date(self._today)
        content.channel_config = ChannelConfig.require_channels(["analysis", "commentary", "final"])
        content.reasoning_effort = self._effort()
        identity = kwargs.get("model_identity")
        if isinstance(identity, str):
            content.model_identity = self._hidden.text(identity)
        for namespace in self._tools.system:
            content = content.with_tools(namespace)
        return content

    def _effort(self) -> ReasoningEffort:
        kwargs = self._conversation.template_kwargs
        asked = kwargs.get("reasoning_effort")
        if asked is None:
            return EFFORTS["low" if kwargs.get("enable_thinking") is False else "medium"]
        if not isinstance(asked, str) or asked not in EFFORTS:
            raise BadRequestError(
                f"reasoning_effort must be one of {', '.join(EFFORTS)}, not {short(asked)}", param="reasoning_effort"
            )
        return EFFORTS[asked]

    def _add_developer(self, texts: list[str]) -> None:
        """Nothing, if there is nothing to say."""
        contents: list[DeveloperContent | TextContent] = []
        instructions = "\n\n".join(filter(None, texts))
        if instructions or self._tools.developer:
            content = DeveloperContent.new()
            if instructions:
                content = content.with_instructions(self._hidden.text(instructions))
            for namespace in self._tools.developer:
                content = content.with_tools(namespace)
            contents.append(content)
        if form := self._response_format():
            contents.append(TextContent(text=f"\n\n{form}" if contents else form))
        if contents:
            self._messages.append(Message.from_role_and_contents(Role.DEVELOPER, contents))

    def _response_format(self) -> str | None:
        form = self._conversation.response_format
        schema = None if form is None else form.json_schema
        if schema is None or schema.schema is None:
            return None
        text = msgspec.json.encode(schema.schema).decode()
        name = self._hidden.text(schema.name or "answer")
        return f"# Response Formats\n\n## {name}\n\n{self._hidden.text(text)}"

    def _last_final(self) -> int:
        """Index of the last answer that is complete; -1 if there is none. The last message, where the model is to go on
        with it or nothing is to come, still shows what it was thought of."""
        given = self._conversation.messages
        end = len(given) if self._conversation.add_generation_prompt else len(given) - 1
        return next((at for at in range(end - 1, -1, -1) if self._is_final(at)), -1)

    def _is_final(self, at: int) -> bool:
        """What the assistant goes on after by itself was no final answer."""
        given = self._conversation.messages
        message = given[at]
        if message.role != "assistant" or message.tool_calls or not message.content:
            return False
        return at == len(given) - 1 or given[at + 1].role != "assistant"

    def _add(self, message: schemas.Message, at: int, *, thinks: bool) -> None:
        text = chat.content_text(message, at)
        match message.role:
            case "user":
                self._messages.append(Message.from_role_and_content(Role.USER, self._hidden.text(text)))
            case "system" | "developer":
                content = DeveloperContent.new().with_instructions(self._hidden.text(text))
                self._messages.append(Message.from_role_and_content(Role.DEVELOPER, content))
            case "assistant":
                self._add_assistant(message, text, at, thinks=thinks)
            case "tool" | "function":
                self._add_result(message, text, at)
            case role:
                raise BadRequestError(
                    f"messages[{at}].role must be system, developer, user, assistant or tool, not {short(role)}",
                    param=f"messages[{at}].role",
                )

    def _add_assistant(self, message: schemas.Message, text: str, at: int, *, thinks: bool) -> None:
        reasoning = message.reasoning_content or message.reasoning
        if reasoning and thinks:
            self._say(reasoning, "analysis")
        is_begun = self._conversation.continue_final_message and at == len(self._conversation.messages) - 1
        if message.tool_calls:
            if text:
                self._say(text, "commentary")
            for call in message.tool_calls:
                self._add_call(call)
        elif text or is_begun or not reasoning:
            self._say(text, "final" if is_begun or not text or self._is_final(at) else "commentary")

    def _say(self, text: str, channel: str) -> None:
        message = Message.from_role_and_content(Role.ASSISTANT, self._hidden.text(text))
        self._messages.append(message.with_channel(channel))

    def _add_call(self, call: schemas.ToolCall) -> None:
        name, arguments = call.function.name, call.function.arguments
        self._last_name = name
        if call.id is not None:
            self._names[call.id] = name
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        channel, kind = "commentary", "json"
        if (code := self._code(name, text)) is not None:
            text, channel, kind = code, "analysis", "code"
        message = Message.from_role_and_content(Role.ASSISTANT, self._hidden.text(text or "{}"))
        recipient = self._hidden.runs(self._recipients.recipient(name))
        self._messages.append(message.with_channel(channel).with_recipient(recipient).with_content_type(kind))

    def _code(self, name: str, arguments: str) -> str | None:
        """Of a call that was written as text: this text."""
        parameter = self._recipients.text_parameter(name)
        if parameter is None:
            return None
        try:
            found = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            return arguments  # it was cut
        text = found.get(parameter) if isinstance(found, dict) else None
        return text if isinstance(text, str) else arguments

    def _add_result(self, message: schemas.Message, text: str, at: int) -> None:
        name = self._names.get(message.tool_call_id or "") or message.name or self._last_name
        if name is None:
            raise BadRequestError(
                f"messages[{at}] is the result of a call, but there is no call before it", param=f"messages[{at}]"
            )
        recipient = self._recipients.recipient(name)
        author = Author.new(Role.TOOL, self._hidden.runs(recipient))
        result = Message.from_author_and_content(author, self._hidden.text(text))
        channel = "analysis" if recipient == PYTHON else "commentary"
        self._messages.append(result.with_channel(channel).with_recipient("assistant"))
