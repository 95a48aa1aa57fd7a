"""A decoded chat request to all that answering it needs. Shared by the APIs that are chats: each makes a ChatRequest of
its body and has its own writer.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from app.calls import Calls, forced_calls
from app.chat_reading import end_of_prompt, read_chat, read_harmony, thoughts_before_grammar
from app.chat_writer import ChatForm
from app.choice_reader import PlainReader
from app.conversation import Conversation, begins_message, conversation_of
from app.deadline import Deadline, deadline_of, within
from app.engine import Prompt
from app.grammar import RequestGrammars
from app.head import Head
from app.parts import ChoiceReader
from app.prompts import engine_prompts, response_head, tokens_as_ids
from app.render import Template
from app.sampling import Wanted, checked_logprobs
from app.schemas.chat import ChatRequest
from app.services import Services
from app.template_source import template_for
from app.tool_namespace import ToolNamespace
from app.tracing.request_trace import traced_phase
from app.truncation import truncated
from protocol.errors import BadRequestError
from protocol.sampling import Grammar, Thoughts


@frozen
class PreparedChat:
    """One prompt per choice."""

    prompts: list[Prompt]
    head: Head
    form: ChatForm
    """What chat completions tell of the answer; other APIs need only `reader`."""
    deadline: Deadline | None

    @property
    def token_ids(self) -> list[int]:
        """Of the prompt."""
        return self.form.prompt

    def reader(self) -> ChoiceReader:
        """A new one, for one choice."""
        return PlainReader() if self.form.reader is None else self.form.reader()


async def prepare_chat(
    services: Services,
    grammars: RequestGrammars,
    body: ChatRequest,
    id_prefix: str,
    namespaces: Sequence[ToolNamespace] = (),
) -> PreparedChat:
    """Everything that can be refused is refused here. `namespaces`: of those of its tools that are an MCP server's.

    Raises BadRequestError, NotFoundError, UnavailableError, and DeadlineError if it took longer than the request may.
    """
    deadline = deadline_of(body.timeout, services.limits)
    head = response_head(services, body, id_prefix)
    services.facts()
    calls = forced_calls(body.tools, body.tool_choice, body.parallel_tool_calls is not False, services.limits)
    wanted = _wanted(body, services)
    with within(deadline):
        with traced_phase("tokenise"):
            token_ids = await encode_request(services, body, namespaces)
        token_ids = truncated(token_ids, body, wanted, services.facts().max_model_len)
        prompt_text = await services.tokenizer.decode_long(token_ids) if body.return_prompt_text else None
        end = end_of_prompt(services, body, token_ids)
        grammar = await _grammar(body, calls, grammars, thoughts_before_grammar(services, end, token_ids))
    reading = (
        read_chat(services, body, calls, grammar is not None, end)
        if services.harmony is None
        else read_harmony(services.harmony, body, calls, namespaces, token_ids)
    )
    prompts = reading.adapted(engine_prompts(services, body, wanted, [token_ids], grammar))
    last = body.add_generation_prompt, body.continue_final_message
    form = ChatForm(
        logprobs=bool(body.logprobs),
        prompt_logprobs=body.prompt_logprobs is not None,
        return_token_ids=bool(body.return_token_ids),
        prompt=token_ids,
        reader=reading.reader,
        counts_reasoning=reading.counts_reasoning,
        tokens_as_ids=tokens_as_ids(services, body),
        prompt_text=prompt_text,
        role=services.response_role if begins_message(*last) else "assistant",
    )
    return PreparedChat(prompts, head, form, deadline)


async def encode_request(services: Services, body: ChatRequest, namespaces: Sequence[ToolNamespace] = ()) -> list[int]:
    """The prompt of a request, before anything is cut off. Raises BadRequestError, UnavailableError."""
    template = await template_for(services, body.chat_template)
    return await encode_chat(services, template, _conversation(body, services, namespaces))


async def encode_chat(services: Services, template: Template | None, conversation: Conversation) -> list[int]:
    """The prompt of a conversation. Raises BadRequestError, also if there is no template for it."""
    if template is None:
        raise BadRequestError(
            "This model's checkpoint has no chat template, so it cannot be talked with; use /v1/completions",
            code="no_chat_template",
        )
    token_ids = await template.encode(conversation, services.tokenizer, services.facts().max_model_len)
    if not token_ids:
        raise BadRequestError("These messages give an empty prompt", param="messages")
    return token_ids


def _conversation(body: ChatRequest, services: Services, namespaces: Sequence[ToolNamespace]) -> Conversation:
    kwargs = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    return conversation_of(
        body.messages,
        max_messages=services.limits.max_messages,
        tools=None if body.tool_choice == "none" else body.tools,
        documents=body.documents,
        template_kwargs=kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens,
        namespaces=namespaces,
        response_format=body.response_format,
    )


def _wanted(body: ChatRequest, services: Services) -> Wanted:
    if body.thinking_token_budget is not None:
        raise BadRequestError(
            "thinking_token_budget is not supported: only max_completion_tokens bounds an answer, thoughts included",
            param="thinking_token_budget",
        )
    new_name = body.max_completion_tokens is not None
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequestError("top_logprobs is only allowed with logprobs", param="top_logprobs")
    top = checked_logprobs("top_logprobs", body.top_logprobs, services.limits)
    return Wanted(
        max_tokens=body.max_completion_tokens if new_name else body.max_tokens,
        max_tokens_param="max_completion_tokens" if new_name else "max_tokens",
        default_max_tokens=None,
        min_max_tokens=1,
        logprobs=(top or 0) if body.logprobs else None,
        prompt_logprobs=checked_logprobs("prompt_logprobs", body.prompt_logprobs, services.limits),
    )


async def _grammar(
    body: ChatRequest, calls: Calls | None, grammars: RequestGrammars, after: Thoughts | None
) -> Grammar | None:
    asked = await grammars.grammar_of(body, after)
    if calls is None:
        return asked
    if asked is not None:
        raise BadRequestError("A forced tool call and a response format exclude each other", param="tool_choice")
    return await grammars.json_schema(calls.schema, "tools", after)
