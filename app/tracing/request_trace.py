"""What is noted of one request while it is answered, for the spans that are told when it is over.

`current_trace` is how routes, the engine client and tools find it, in whatever task they do the request's work: tasks
inherit it. Without --otlp-traces-endpoint it is always None. Notes are bounded, however long a response goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from attrs import define, field, frozen

from app.tracing.sequence import TracedGeneration, TracedSequence, phases
from app.tracing.span import AttributeValue, SpanEvent, SpanRecord, within
from app.tracing.trace_context import TraceContext
from protocol.sampling import SamplingParams

if TYPE_CHECKING:
    from app.engine import Prompt

MAX_EVENTS = 64
MAX_SEQUENCES = 16
"""Of one generation that have spans of their own; embeddings are many, and all alike."""
MAX_SEQUENCES_IN_ALL = 96
"""Of a response with its turns. Each has some six spans."""
MAX_PHASES = 128


class ToolSpan(Protocol):
    """Of one call of a tool, while it is made."""

    def failed(self, reason: str) -> None: ...


class SpanSource(Protocol):
    """Where spans come from that others hear of while they are open: app/tracing/otel.py."""

    def tool_call(self, trace: RequestTrace, server_label: str, name: str) -> AbstractContextManager[ToolSpan]:
        """A call that is being made; requests to MCP servers within it say that they belong to it."""
        ...

    def in_background(self, trace: RequestTrace) -> RequestTrace:
        """Of what goes on after this request."""
        ...

    def end(self, trace: RequestTrace, outcome: Outcome) -> None:
        """It is over: hand all of it over for export. Not to be called twice."""
        ...


@frozen
class Outcome:
    """What became of the request as a whole."""

    ended: float
    attributes: dict[str, AttributeValue]
    failure: str | None = None
    """Why it is an error of ours, in a word."""


@define(eq=False)
class RequestTrace:
    """Times are seconds of CLOCK_MONOTONIC."""

    context: TraceContext
    """Of its own span."""
    began: float
    zero: int
    """When CLOCK_MONOTONIC was 0, in nanoseconds since 1970, as it looked when the request began."""
    source: SpanSource
    clock: Callable[[], float]
    events: list[SpanEvent] = field(factory=list)
    generations: list[TracedGeneration] = field(factory=list)
    phases: list[SpanRecord] = field(factory=list)
    params: SamplingParams | None = None
    """Of its first prompt."""
    num_choices: int = 0
    """Of each prompt, as it asked for."""
    num_sequences: int = 0
    num_untold: int = 0
    """Sequences that have no span."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return f"{self.context.trace_id:032x}"

    @property
    def is_recorded(self) -> bool:
        """Else nobody reads what is noted, and nothing is: the caller or our own sampler has decided so."""
        return self.context.is_sampled

    def note_phase(self, name: str, began: float, ended: float) -> None:
        if self.is_recorded and len(self.phases) < MAX_PHASES:
            self.phases.append(SpanRecord(name, began, ended))

    def note_prompts(self, prompts: Sequence[Prompt], n: int) -> None:
        """They are about to be sent to the engines."""
        if self.params is None:
            self.params, self.num_choices = prompts[0].sampling_params, n

    def note_generation(self, began: float, sequences: Sequence[TracedSequence]) -> None:
        """It has ended, or was left."""
        if not self.is_recorded:
            return
        room = min(MAX_SEQUENCES, MAX_SEQUENCES_IN_ALL - (self.num_sequences - self.num_untold))
        self.num_sequences += len(sequences)
        self.num_untold += max(0, len(sequences) - room)
        if room:
            self.generations.append(TracedGeneration(began, self.clock(), tuple(sequences[:room])))

    def interrupted(self, by: str) -> None:
        """What computed a sequence of it, or read it, is gone: `by` says who."""
        self._note_event("interrupted", {"trillm.lost": by})

    def replayed(self, lost: str, engine: str, num_tokens: int) -> None:
        """The sequence goes on in this engine, after so many tokens that had been told."""
        self._note_event("replay", {"trillm.lost": lost, "trillm.engine": engine, "trillm.num_tokens_told": num_tokens})

    def _note_event(self, name: str, attributes: dict[str, AttributeValue]) -> None:
        if self.is_recorded and len(self.events) < MAX_EVENTS:
            self.events.append(SpanEvent(name, self.clock(), attributes))

    def children(self, ended: float) -> list[SpanRecord]:
        """All that lies within the request's own span, which ends now. Pure."""
        spans = [_bounded(phase, self.began, ended) for phase in self.phases]
        several = len(self.generations) > 1
        last = self.began
        for generation in self.generations:
            began, until = within(generation.began, self.began, ended), within(generation.ended, self.began, ended)
            inside = _generation_spans(generation, began, until)
            spans += [SpanRecord("generate", began, until, children=inside)] if several else inside
            last = max([last, *(span.ended for span in inside)])
        if self.generations:
            spans.append(SpanRecord("send", last, ended))
        return sorted(spans, key=lambda span: span.began)


def _generation_spans(generation: TracedGeneration, began: float, ended: float) -> list[SpanRecord]:
    if len(generation.sequences) == 1:
        return phases(generation.sequences[0], began, ended)
    spans = []
    for index, sequence in enumerate(generation.sequences):
        inside = phases(sequence, began, ended)
        attributes = {"trillm.index": index, **sequence.attributes}
        last = max(span.ended for span in inside)  # not always of the last one: detokenising lies beside decoding
        spans.append(SpanRecord("sequence", inside[0].began, last, attributes, inside))
    return spans


def _bounded(span: SpanRecord, began: float, ended: float) -> SpanRecord:
    first = within(span.began, began, ended)
    return SpanRecord(span.name, first, within(span.ended, first, ended), span.attributes)


current_trace: ContextVar[RequestTrace | None] = ContextVar("trillm_trace", default=None)
"""Of the request that this task works for."""


@contextmanager
def traced_phase(name: str) -> Iterator[None]:
    """What is done within it is a span of the request's."""
    trace = current_trace.get()
    if trace is None:
        yield
        return
    began = trace.clock()
    try:
        yield
    finally:
        trace.note_phase(name, began, trace.clock())


class NoToolSpan:
    """Fulfils ToolSpan."""

    def failed(self, reason: str) -> None:
        return None


@contextmanager
def traced_tool_call(server_label: str, name: str) -> Iterator[ToolSpan]:
    trace = current_trace.get()
    if trace is None:
        yield NoToolSpan()
        return
    with trace.source.tool_call(trace, server_label, name) as span:
        yield span
