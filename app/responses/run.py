"""From a plan to the end of its response: turns of the model, and between them the calls that the server makes.

`run_response` is what happens in any case; `run_in_request` is that for a client who waits. Everything is told to the
response's log, and nobody but the log's readers hears of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import trio
from attrs import define, field

from app.access_log import Access
from app.chat import PreparedChat
from app.deadline import within
from app.failures import failure_of, told
from app.grammar import RequestGrammars
from app.respond import open_logged_answer
from app.responses.chat_fields import LOGPROBS
from app.responses.event_log import EndStatus, EventLog
from app.responses.input_items import as_input
from app.responses.plan import Plan
from app.responses.prepare import next_chat
from app.responses.tool_box import ServerTool
from app.responses.turn import Called, Turn
from app.responses.turn_usage import TurnUsage
from app.schemas.response_events import (
    McpCallArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
    McpListToolsCompleted,
    McpListToolsFailed,
    McpListToolsInProgress,
    OutputItemAdded,
    OutputItemDone,
)
from app.schemas.responses import InputItem, McpCallItem, McpToolExecutionError, OutputItem, ResponseError
from app.services import Services
from app.sparse_stream import HeldOutputs, checked_interval
from protocol.errors import BadRequestError, TrillmError

MAX_TURNS = 64
"""Of one response. In the last one the model is shown no more tools that the server runs."""
MAX_OUTPUT_TOKENS = "max_output_tokens"

Started = trio.TaskStatus[None]


async def run_in_request(
    services: Services,
    grammars: RequestGrammars,
    plan: Plan,
    log: EventLog,
    access: Access,
    task_status: Started = trio.TASK_STATUS_IGNORED,
) -> TrillmError | None:
    """`run_response` for a client who waits: a response whose client leaves has been cancelled."""
    try:
        return await run_response(services, grammars, plan, log, access, task_status)
    finally:
        if log.num_events and log.last is None:
            await _end(services, plan, log, "cancelled")


async def run_response(
    services: Services,
    grammars: RequestGrammars,
    plan: Plan,
    log: EventLog,
    access: Access,
    task_status: Started = trio.TASK_STATUS_IGNORED,
) -> TrillmError | None:
    """Returns what the response has failed with, when its end is told. Is started when the response has begun; what is
    wrong before is raised, if `log` is still empty then. When cancelled, it leaves the log without an end."""
    run = _Run(services, grammars, plan, log, access)
    try:
        incomplete = await run.to_the_end(task_status)
    except trio.Cancelled:
        run.abandon()
        raise
    except Exception as error:
        if not log.num_events:
            raise
        failure = failure_of(error, access.label)
        run.abandon()
        code = "invalid_prompt" if isinstance(failure, BadRequestError) else "server_error"
        await _end(services, plan, log, "failed", usage=run.usage, error=ResponseError(code, told(failure)))
        return failure
    await _end(services, plan, log, "incomplete" if incomplete else "completed", usage=run.usage, incomplete=incomplete)
    return None


async def _end(
    services: Services,
    plan: Plan,
    log: EventLog,
    status: EndStatus,
    *,
    usage: TurnUsage | None = None,
    error: ResponseError | None = None,
    incomplete: str | None = None,
) -> None:
    log.settle(
        status,
        usage=None if usage is None or not usage.inputs else usage.told(),
        error=error,
        incomplete=incomplete,
        completed_at=int(services.clock()),
    )
    if plan.stores:
        with trio.CancelScope(shield=True):
            await services.response_keeper.ended(log)
    log.publish()


@define(eq=False)
class _Run:
    services: Services
    grammars: RequestGrammars
    plan: Plan
    log: EventLog
    access: Access
    usage: TurnUsage = field(factory=TurnUsage)
    num_calls: int = 0
    """That were made."""
    open_calls: list[Called] = field(factory=list)
    """Written whole, and not made yet."""
    turn: Turn | None = None

    async def to_the_end(self, started: Started) -> str | None:
        """Returns why the response is incomplete, None if it is whole."""
        approved = [] if self.plan.box is None else self.plan.box.approved
        chat = self.plan.chat
        if approved:
            await self.begin(started)
            self._add_approved(approved)
            await self.make_calls()
            chat = await self.next_chat(offers_servers=True)
        for turn_index in range(MAX_TURNS + 1):
            turn = await self.generate(chat, started)
            if turn.is_cut:
                return MAX_OUTPUT_TOKENS
            if not turn.to_make:
                return None
            offers_servers = turn_index < MAX_TURNS - 1 and self.calls_left() > 0
            self.open_calls = turn.to_make
            await self.make_calls()
            if turn.waits_for_client or turn_index == MAX_TURNS:
                return None
            if self.tokens_left() == 0:
                return MAX_OUTPUT_TOKENS
            chat = await self.next_chat(offers_servers=offers_servers)
        return None

    async def begin(self, started: Started) -> None:
        """Once: tells that there is a response, and which tools it has."""
        if self.log.num_events == 0:
            self.log.begin()
            if self.plan.stores:
                await self.services.response_keeper.began(self.log, self.plan.input_items)
        self.log.run()
        for listing in [] if self.plan.box is None else self.plan.box.listings:
            where = listing.id, len(self.log.items)
            empty = msgspec.structs.replace(listing, tools=[], error=None)
            self.log.append(OutputItemAdded(output_index=where[1], item=empty))
            self.log.append(McpListToolsInProgress(*where))
            kind = McpListToolsCompleted if listing.error is None else McpListToolsFailed
            self.log.append(kind(*where))
            self.log.append(OutputItemDone(output_index=where[1], item=listing))
        started.started()

    async def generate(self, chat: PreparedChat, started: Started) -> Turn:
        """One turn. The first one begins the response, when the engine has taken it."""
        services, access = self.services, self.access
        is_first = not self.has_begun
        stream = bool(self.plan.body.stream)
        services.request_log.tell(access.label, chat.prompts, len(chat.prompts), stream, services.tokenizer)
        goes_on = not is_first or self.plan.response.background
        deadline = self.plan.chat.deadline
        async with open_logged_answer(services, chat.prompts, 1, access, deadline, goes_on=goes_on) as answer:
            if is_first:
                await self.begin(started)
            wants_logprobs = LOGPROBS in (self.plan.body.include or ())
            turn = self.turn = Turn(self.log, chat.reader(), self.find, tells_logprobs=wants_logprobs)
            held = HeldOutputs(self.stream_interval)
            try:
                while not answer.finished:
                    for index, output in await answer.receive():
                        if (due := held.due(index, output)) is not None:
                            turn.feed(due[1])
            finally:
                for _, output in held.taken():
                    turn.feed(output)
                self.usage.add(answer.usage(), turn.num_reasoning_tokens)
        return turn

    @property
    def stream_interval(self) -> int:
        """Tokens of an event."""
        asked = self.plan.chat_request
        return max(self.services.stream_interval, checked_interval(asked)) if asked.stream else 1

    @property
    def has_begun(self) -> bool:
        return self.log.response.status == "in_progress" and self.log.num_events > 0

    def find(self, name: str) -> ServerTool | None:
        return None if self.plan.box is None else self.plan.box.find(name)

    async def next_chat(self, *, offers_servers: bool) -> PreparedChat:
        with within(self.plan.chat.deadline):
            chat = await next_chat(
                self.services,
                self.grammars,
                self.plan,
                [*self.plan.items, *self.told_items()],
                offers_servers=offers_servers,
                max_tokens=self.tokens_left(),
            )
        self.access.answer_id = self.log.id
        return chat

    def told_items(self) -> list[InputItem]:
        return [as_input(item) for item in self.log.items]

    def tokens_left(self) -> int | None:
        most = self.plan.body.max_output_tokens
        return None if most is None else max(0, most - self.usage.num_output_tokens)

    def calls_left(self) -> int:
        most = self.plan.body.max_tool_calls
        return 1 if most is None else max(0, most - self.num_calls - len(self.open_calls))

    def _add_approved(self, calls: Sequence[McpCallItem]) -> None:
        for call in calls:
            index = len(self.log.items)
            self.log.append(OutputItemAdded(output_index=index, item=call))
            self.log.append(McpCallInProgress(call.id, index))
            self.log.append(McpCallArgumentsDone(call.id, index, arguments=call.arguments))
            self.open_calls.append(Called(call, index))

    async def make_calls(self) -> None:
        """One after the other; those beyond max_tool_calls are refused, which the model is told."""
        box, most = self.plan.box, self.plan.body.max_tool_calls
        assert box is not None, "only a tool box has such calls"
        while self.open_calls:
            called = self.open_calls[0]
            if most is not None and self.num_calls >= most:
                refusal = McpToolExecutionError(f"This call was not made: max_tool_calls is {most}")
                result = msgspec.structs.replace(called.item, status="failed", error=refusal)
            else:
                self.num_calls += 1
                with within(self.plan.chat.deadline):
                    result = await box.call(called.item)
            self._tell_result(self.open_calls.pop(0), result)

    def _tell_result(self, called: Called, result: McpCallItem) -> None:
        kind = McpCallCompleted if result.status == "completed" else McpCallFailed
        self.log.append(kind(result.id, called.index))
        self._done(called.index, result)

    def abandon(self) -> None:
        """Ends the items that are open where they are."""
        if self.turn is not None:
            self.turn.abandon()
        for called in self.open_calls:
            self._tell_result(called, msgspec.structs.replace(called.item, status="incomplete"))
        self.open_calls = []

    def _done(self, index: int, item: OutputItem) -> None:
        self.log.append(OutputItemDone(output_index=index, item=item))
