"""The output actor: hears the engines, detokenises, tells the app. All decisions are the OutputProcessor's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import assert_never, final

import trio

from actors.control import Control, Pulse
from actors.output.processor import OutputProcessor, Processed
from actors.output.vocabulary import load_vocabulary
from protocol.codec import APP_INPUT, ENGINE_INPUT, ENGINE_OUTPUT, OUTPUT_INPUT
from protocol.engine_stats import EngineStats
from protocol.ids import ClientIndex, EngineIndex, RequestId
from protocol.links import Inbox, Links, Outbox, open_links, receive_batch, send_in_parts
from protocol.messages import (
    AbortRequest,
    AppInput,
    AttachEngine,
    EngineAttached,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineHeartbeat,
    EngineInput,
    EngineOutput,
    FinishReason,
    OutputInput,
    RequestOutput,
    RequestOutputs,
    ResyncRequest,
    UtilityAnswer,
    UtilityReply,
    Welcome,
)
from protocol.spec import OutputFacts, OutputSpec

logger = logging.getLogger("trillm.output")

MAX_OPENING = 64
"""Engines that are being attached and have not said Welcome."""

Attach = Callable[[AttachEngine], AbstractContextManager[tuple[Inbox[EngineOutput], Outbox[EngineInput]]]]
"""Opens the links to an engine's incarnation, and closes them on leaving."""


@final
class Attachment:
    """One incarnation of one engine, as this output handler hears it. Pure bookkeeping of epoch and sequence."""

    def __init__(self, attach: AttachEngine, processor: OutputProcessor) -> None:
        self.engine_index = attach.engine_index
        self.epoch = attach.epoch
        self.processor = processor
        self.stats = EngineStats()
        self.scope = trio.CancelScope()
        """Ends the task that hears it."""
        self.engine: Outbox[EngineInput] | None = None
        """None until the links are open; nothing has been heard before that."""
        self._next_seq: int | None = None

    def in_sequence(self, seq: int) -> bool:
        """Whether nothing is missing before this frame, which counts as seen. Repeats are in sequence."""
        expected = self._next_seq
        if expected is None or seq <= expected:
            self._next_seq = max(seq + 1, expected or 0)
            return True
        self._next_seq = seq + 1
        return False

    def is_behind(self, next_seq: int) -> bool:
        """Whether frames before this number are missing at the tail; said once for each such number."""
        if self._next_seq is None or next_seq <= self._next_seq:
            return False
        self._next_seq = next_seq
        return True

    def welcome(self, next_seq: int) -> None:
        self._next_seq = next_seq


@final
class OutputHandler:
    """Tasks: one that hears the app, and one per attached engine."""

    def __init__(
        self,
        client_index: ClientIndex,
        new_processor: Callable[[], OutputProcessor],
        app: Outbox[AppInput],
        attach: Attach,
        pulse: Pulse,
    ) -> None:
        self._client_index = client_index
        self._new_processor = new_processor
        self._app = app
        self._attach = attach
        self._pulse = pulse
        self._attachments: dict[EngineIndex, Attachment] = {}
        """Those that have said Welcome."""
        self._opening: dict[EngineIndex, Attachment] = {}

    async def run(self, inbox: Inbox[OutputInput]) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for message in await receive_batch(inbox):
                    self._take(message, nursery)

    def _take(self, message: OutputInput, nursery: trio.Nursery) -> None:
        match message:
            case EngineCoreRequest():
                if attachment := self._attachment(message):
                    self._act(attachment.processor.register(message), attachment)
            case AbortRequest(request_ids=ids):
                for attachment in self._attachments.values():
                    attachment.processor.abort(ids)
            case AttachEngine(engine_index=index):
                attachment = Attachment(message, self._new_processor())
                if old := self._opening.pop(index, None):
                    old.scope.cancel()
                elif len(self._opening) == MAX_OPENING:
                    self._opening.pop(next(iter(self._opening))).scope.cancel()
                self._opening[index] = attachment
                nursery.start_soon(self._hear, message, attachment)
            case _:
                assert_never(message)

    def _attachment(self, request: EngineCoreRequest) -> Attachment | None:
        """The incarnation that the request was made for; none if that is gone, which the app learns from the house."""
        return next((a for a in self._attachments.values() if a.epoch == request.epoch), None)

    async def _hear(self, attach: AttachEngine, attachment: Attachment) -> None:
        try:
            with attachment.scope, self._attach(attach) as (inbox, attachment.engine):
                while True:
                    for message in await receive_batch(inbox):
                        if message.epoch == attachment.epoch:
                            self._take_output(message, attachment)
                    self._pulse.step += 1
        except OSError as error:
            logger.error("engine %s cannot be attached: %s", attach.engine_index, error)

    def _welcomed(self, attachment: Attachment) -> None:
        """From here on this incarnation counts. Not from AttachEngine on: whoever only claims that there is a new one
        does not take away the one that is heard."""
        index = attachment.engine_index
        if self._opening.get(index) is attachment:
            del self._opening[index]
            if old := self._attachments.get(index):
                old.scope.cancel()
            self._attachments[index] = attachment

    def _take_output(self, message: EngineOutput, attachment: Attachment) -> None:
        match message:
            case Welcome(next_seq=next_seq):
                attachment.welcome(next_seq)
                self._welcomed(attachment)
                self._app.send_nowait(EngineAttached(attachment.engine_index, attachment.epoch))
            case EngineCoreOutputs(seq=seq, stats=stats):
                missed = not attachment.in_sequence(seq)
                attachment.stats = stats
                self._act(attachment.processor.process(message), attachment)
                if missed:
                    self._resync(attachment.processor.offsets(), attachment)
            case EngineHeartbeat(next_seq=next_seq, stats=stats):
                if attachment.is_behind(next_seq):
                    self._resync(attachment.processor.offsets(), attachment)
                attachment.stats = stats
                self._tell(attachment, [])
            case UtilityReply(seq=seq):
                if not attachment.in_sequence(seq):
                    self._resync(attachment.processor.offsets(), attachment)
                self._app.send_nowait(UtilityAnswer(attachment.engine_index, message))
            case _:
                assert_never(message)

    def _act(self, processed: Processed, attachment: Attachment) -> None:
        if processed.aborts and attachment.engine:
            attachment.engine.send_nowait(AbortRequest(attachment.epoch, self._client_index, processed.aborts))
        self._resync(processed.resync, attachment)
        self._tell(attachment, processed.outputs)

    def _resync(self, offsets: dict[RequestId, int], attachment: Attachment) -> None:
        if offsets and attachment.engine:
            logger.warning("engine %s: output lost, asking again (requests: %s)", attachment.engine_index, len(offsets))
            attachment.engine.send_nowait(ResyncRequest(attachment.epoch, self._client_index, offsets))

    def _tell(self, attachment: Attachment, outputs: list[RequestOutput]) -> None:
        def send(part: list[RequestOutput]) -> None:
            self._app.send_nowait(RequestOutputs(attachment.engine_index, attachment.epoch, part, attachment.stats))

        send_in_parts(outputs, send, too_large)


def too_large(output: RequestOutput) -> RequestOutput:
    """What a client gets instead of log-probabilities that no frame holds."""
    error = "the log-probabilities of this output are too large to be sent; ask for fewer"
    return RequestOutput(output.request_id, output.offset, [], "", finish_reason=FinishReason.ERROR, error=error)


def attach_over(links: Links) -> Attach:
    """Attaching over ZMQ: a SUB to hear the engine, a PUSH to abort and to ask again."""

    @contextmanager
    def attach(message: AttachEngine) -> Iterator[tuple[Inbox[EngineOutput], Outbox[EngineInput]]]:
        with ExitStack() as stack:
            inbox = links.subscribe(message.outputs_address, ENGINE_OUTPUT)
            stack.callback(inbox.close)
            outbox = links.push(message.requests_address, ENGINE_INPUT)
            stack.callback(outbox.close)
            yield inbox, outbox

    return attach


async def run_output_process(spec: OutputSpec, control: Control) -> None:
    """The output handler as a process: load the vocabulary, bind, say Ready, serve until cancelled."""
    control.pulse.enter("load")
    vocabulary = await trio.to_thread.run_sync(load_vocabulary, spec.checkpoint)
    with open_links(spec.curve) as links:
        inbox = links.pull(spec.inbox_address, OUTPUT_INPUT)
        app = links.push(spec.app_address, APP_INPUT)

        def new_processor() -> OutputProcessor:
            return OutputProcessor(vocabulary)

        handler = OutputHandler(spec.client_index, new_processor, app, attach_over(links), control.pulse)
        control.pulse.enter("serve")
        await control.ready(OutputFacts(vocab_size=vocabulary.size))
        await handler.run(inbox)
