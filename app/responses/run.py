"""From a plan to the end of its response: turns of the model, and between them the calls that the server makes.

`run_response` is what happens in any case; `run_in_request` is that for a client who waits. Everything is told to the
response's log, and nobody but the log's readers hears of it.
"""

from __future__ import annotations

import trio

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
from app.responses.result_room import explained, room_for_results
from app.responses.server_calls import CALLS_AT_ONCE, ServerCalls
from app.responses.tool_box import ServerTool
from app.responses.turn import Turn
from app.responses.turn_usage import TurnUsage
from app.schemas.responses import ResponseError
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
        if run.usage.inputs:
            log.note_usage(run.usage.told())
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


class _Run:
    """Of one response."""

    def __init__(
        self, services: Services, grammars: RequestGrammars, plan: Plan, log: EventLog, access: Access
    ) -> None:
        self._services = services
        self._grammars = grammars
        self._plan = plan
        self._log = log
        self._access = access
        self._calls = ServerCalls(
            log,
            plan.box,
            plan.body.max_tool_calls,
            plan.chat.deadline,
            services.tokenizer,
            at_once=1 if plan.body.parallel_tool_calls is False else CALLS_AT_ONCE,
        )
        self._turn: Turn | None = None
        self.usage = TurnUsage()

    async def to_the_end(self, started: Started) -> str | None:
        """Returns why the response is incomplete, None if it is whole."""
        approved = [] if self._plan.box is None else self._plan.box.approved
        chat = self._plan.chat
        if approved:
            await self._begin(started)
            self._calls.add_approved(approved)
            await self._calls.make(self._room(len(chat.token_ids)))
            chat = await self._next_chat(offers_servers=True)
        for turn_index in range(MAX_TURNS + 1):
            turn = await self._generate(chat, started)
            if turn.is_cut:
                self.abandon()
                return MAX_OUTPUT_TOKENS
            calls = turn.take_calls()
            if not calls:
                return None
            self._calls.add(calls)
            offers_servers = turn_index < MAX_TURNS - 1 and self._calls.may_go_on
            await self._calls.make(self._room(self.usage.num_in_context))
            if turn.waits_for_client or turn_index == MAX_TURNS:
                return None
            if self._is_at_its_bound:
                return MAX_OUTPUT_TOKENS
            chat = await self._next_chat(offers_servers=offers_servers)
        return None

    def abandon(self) -> None:
        """Ends the items that are open where they are."""
        if self._turn is not None:
            self._turn.abandon()
            self._calls.add(self._turn.take_calls())
        self._calls.abandon()

    async def _begin(self, started: Started) -> None:
        """Once: tells that there is a response, and which tools it has."""
        if self._log.num_events == 0:
            self._log.begin()
            if self._plan.stores:
                await self._services.response_keeper.began(self._log, self._plan.input_items)
        self._log.run()
        self._calls.tell_listings()
        started.started()

    @property
    def _has_begun(self) -> bool:
        return self._log.status == "in_progress" and self._log.num_events > 0

    async def _generate(self, chat: PreparedChat, started: Started) -> Turn:
        """One turn. The first one begins the response, when the engine has taken it."""
        services, access, body = self._services, self._access, self._plan.body
        is_first = not self._has_begun
        services.request_log.tell(access.label, chat.prompts, 1, bool(body.stream), services.tokenizer)
        waits = is_first and self._plan.response.background
        deadline = self._plan.chat.deadline
        opened = open_logged_answer(services, chat.prompts, 1, access, deadline, goes_on=not is_first, waits=waits)
        async with opened as answer:
            if is_first:
                await self._begin(started)
            turn = self._turn = Turn(
                self._log, chat.reader(), self._find, tells_logprobs=LOGPROBS in (body.include or ())
            )
            held = HeldOutputs(self._stream_interval)
            try:
                while not answer.finished:
                    for index, output in await answer.receive():
                        if (due := held.due(index, output)) is not None:
                            turn.feed(due[1])
            finally:
                for _, output in held.taken():
                    turn.feed(output)
                num_result_tokens = self._calls.take_num_result_tokens()
                self.usage.add(answer.usage(), turn.num_reasoning_tokens, num_result_tokens)
        return turn

    @property
    def _stream_interval(self) -> int:
        """Tokens of an event."""
        asked = self._plan.chat_request
        return max(self._services.stream_interval, checked_interval(asked)) if asked.stream else 1

    def _find(self, name: str) -> ServerTool | None:
        return None if self._plan.box is None else self._plan.box.find(name)

    async def _next_chat(self, *, offers_servers: bool) -> PreparedChat:
        told_items = [as_input(item) for item in self._log.items]
        try:
            with within(self._plan.chat.deadline):
                chat = await next_chat(
                    self._services,
                    self._grammars,
                    self._plan,
                    [*self._plan.items, *told_items],
                    offers_servers=offers_servers,
                    num_written=self.usage.num_output_tokens,
                )
        except BadRequestError as error:
            raise explained(error, self._log.items) from error
        self._access.answer_id = self._log.id
        return chat

    def _room(self, num_used: int) -> int:
        """Tokens for the results of the calls that are to be made. Older items may make room for them."""
        context = self._services.facts().max_model_len
        room = room_for_results(context, num_used)
        return max(room, context // 2) if self._plan.body.truncation == "auto" else room

    @property
    def _is_at_its_bound(self) -> bool:
        most = self._plan.body.max_output_tokens
        return most is not None and self.usage.num_output_tokens >= most
