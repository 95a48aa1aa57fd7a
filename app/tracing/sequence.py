"""What one sequence went through, as spans: from its timeline, which the engine and the output handler have told. Pure.

    tokenise | queue | prefill | decode              | deliver | send
                               | detokenise |

Used by app/tracing/request_trace.py. `tokenise` and `send` are a whole request's.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from app.tracing.span import Attributes, SpanRecord, within
from protocol.timeline import Timeline


@frozen
class TracedSequence:
    """One choice of one prompt, when it is over or abandoned."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_tokens: int
    """Generated."""
    finish_reason: str | None
    """None: it was abandoned."""
    engine: int
    """Where its latest output came from."""
    timeline: Timeline | None
    """None: it had no place in a step."""
    ended: float | None
    """When its last output was here, in seconds of CLOCK_MONOTONIC; None: that was still to come."""

    @property
    def attributes(self) -> Attributes:
        preemptions = 0 if self.timeline is None else self.timeline.num_preemptions
        return {
            "gen_ai.response.finish_reason": self.finish_reason or "none",
            "gen_ai.usage.input_tokens": self.num_prompt_tokens,
            "gen_ai.usage.output_tokens": self.num_tokens,
            "gen_ai.usage.cache_read.input_tokens": self.num_cached_tokens,
            "trillm.engine": f"engine-{self.engine}",
            "trillm.num_preemptions": preemptions,
        }


@frozen
class TracedGeneration:
    """One call of the engines: all sequences that were sent to them together."""

    began: float
    ended: float
    sequences: Sequence[TracedSequence]


def phases(sequence: TracedSequence, began: float, ended: float) -> list[SpanRecord]:
    """The sequence's own phases, one after the other without a gap, within these bounds; what it has not come to is not
    among them."""
    end = ended if sequence.ended is None else within(sequence.ended, began, ended)
    line = sequence.timeline
    if line is None:
        return [SpanRecord("queue", began, end, _cut_short(sequence))]
    arrived = within(line.arrived_at, began, end)
    scheduled = within(line.scheduled_at, arrived, end)
    first = within(line.first_token_at, scheduled, end)
    last = end if sequence.ended is None else within(line.last_at, first, end)
    new = sequence.num_prompt_tokens - sequence.num_cached_tokens
    spans = [
        SpanRecord("queue", arrived, scheduled),
        SpanRecord("prefill", scheduled, first, {"trillm.num_computed_tokens": new}),
    ]
    if last > first:
        tokens: Attributes = {"gen_ai.usage.output_tokens": sequence.num_tokens}
        spans.append(SpanRecord("decode", first, last, {**tokens, **_cut_short(sequence)}))
    if line.detokenising:
        # It was done piece by piece beside decoding; what is told is how long all pieces took together.
        until = within(first + line.detokenising, first, end)
        seconds = {"trillm.summed": True, "trillm.seconds": line.detokenising}
        spans.append(SpanRecord("detokenise", first, until, seconds))
    if sequence.ended is not None:
        spans.append(SpanRecord("deliver", last, end))
    return spans


def _cut_short(sequence: TracedSequence) -> Attributes:
    return {} if sequence.ended is not None else {"trillm.unfinished": True}
