"""A conversation to token ids, rendered by openai-harmony. Takes a chat template's place where the model is gpt-oss.

Text of clients stays text: the library makes control tokens of nothing but what it writes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from openai_harmony import Conversation as Rendered
from openai_harmony import HarmonyEncoding, HarmonyError, Message, RenderConversationConfig, Role

from app.conversation import Conversation
from app.harmony.hidden_texts import HiddenTexts
from app.harmony.messages import MessageWriter
from app.harmony.vocabulary import NUM_TOKENS
from app.render import Template
from app.template_environment import strftime_now
from app.tokenizer import Tokenizer
from protocol.errors import BadRequestError

_AS_IT_IS = RenderConversationConfig(auto_drop_analysis=False)
"""The library drops no more thoughts than those before the first final answer; we have done that ourselves."""


def _today() -> str:
    return strftime_now("%Y-%m-%d")


class HarmonyTemplate(Template):
    """gpt-oss's, without Jinja."""

    def __init__(self, encoding: HarmonyEncoding, today: Callable[[], str] = _today) -> None:
        """`today`: the date that the model is told."""
        super().__init__()
        self._encoding = encoding
        self._today = today

    def encode_sync(self, conversation: Conversation, tokenizer: Tokenizer, max_model_len: int) -> list[int]:
        conversation.check_num_values()
        hidden = HiddenTexts(conversation.characters())
        messages = MessageWriter(conversation, hidden, self._today()).whole()
        tokenizer.check_length("".join(hidden.texts.values()), max_model_len)
        token_ids = self._rendered(conversation, messages)
        if not hidden.texts:
            return token_ids
        return list(self._shown(token_ids, hidden, tokenizer))

    def _rendered(self, conversation: Conversation, messages: Sequence[Message]) -> list[int]:
        if conversation.continue_final_message and conversation.messages[-1].tool_calls:
            raise BadRequestError("continue_final_message needs a final message with text", param="messages")
        rendered = Rendered.from_messages(messages)
        found: list[int]
        try:
            if conversation.add_generation_prompt:
                found = self._encoding.render_conversation_for_completion(rendered, Role.ASSISTANT, _AS_IT_IS)
            elif conversation.continue_final_message:
                found = self._encoding.render_conversation(rendered, _AS_IT_IS)[:-1]  # without the mark of its end
            else:
                found = self._encoding.render_conversation_for_training(rendered, _AS_IT_IS)
        except (HarmonyError, ValueError) as error:
            raise BadRequestError(f"These messages cannot be rendered: {str(error)[:200]}", param="messages") from error
        return found

    def _shown(self, token_ids: Sequence[int], hidden: HiddenTexts, tokenizer: Tokenizer) -> Iterator[int]:
        """With the texts that were hidden: what is between two control tokens is encoded anew."""
        table = str.maketrans(hidden.texts)
        for is_text, group in groupby(token_ids, lambda token_id: token_id < NUM_TOKENS):
            run = list(group)
            text = self._encoding.decode(run) if is_text else ""
            shown = text.translate(table)
            yield from run if text == shown else tokenizer.encode(shown, add_special_tokens=False, literal=True)
