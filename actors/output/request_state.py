"""One request on its way through the output processor: how many tokens it has, and its text so far."""

from __future__ import annotations

from collections.abc import Sequence

from actors.output.detokenizer import open_detokenizer
from actors.output.logprobs import output_logprobs, prompt_logprobs
from actors.output.stopping import StopMatcher
from actors.output.vocabulary import Vocabulary
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, RequestOutput
from protocol.timeline import Timeline

REPETITION_DETECTED = "repetition_detected"
"""The stop reason that vLLM tells then."""


class RequestState:
    """Takes a request's tokens in order and gives the deltas.

    The continuation tokens of the request are the beginning of its output; they and their text have been delivered
    before. If they complete a stop string already, `stopped_by` says so from the start.
    """

    def __init__(self, vocabulary: Vocabulary, request: EngineCoreRequest) -> None:
        params = request.sampling_params
        self._vocabulary = vocabulary
        self.request_id = request.request_id
        self.num_tokens = 0
        """Output tokens taken in so far, the continuation's among them."""
        self.asked_again_at: int | None = None
        """The number of tokens at which a gap was reported last, so that it is reported once."""
        self.stopped_by: str | None = None
        self.is_traced = request.is_traced
        self.detokenising = 0.0
        """Seconds, if it is traced."""
        self._min_tokens = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        self._stop_token_ids = frozenset(params.eos_token_ids) | frozenset(params.stop_token_ids)
        self._prompt_logprobs_due = params.prompt_logprobs is not None and not request.continuation_token_ids
        self._num_cached_tokens = 0
        self._arrived_at = request.arrival_time
        self._scheduled_at: float | None = None
        self._first_token_at: float | None = None
        self._detokenizer = open_detokenizer(
            vocabulary,
            request.prompt_token_ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
        self._matcher = StopMatcher(params.stop, include_stop_str_in_output=self._include_stop) if params.stop else None
        taken, _ = self._take(request.continuation_token_ids)
        self.num_tokens = taken

    def advance(self, output: EngineCoreOutput, at: float) -> RequestOutput | None:
        """What this output adds; None if nothing. What is known is skipped; its tokens must not leave a gap. It was
        published `at`, in seconds of CLOCK_MONOTONIC.

        Raises ValueError if the engine's output contradicts itself or names impossible tokens.
        """
        assert output.offset <= self.num_tokens or not output.new_token_ids
        known = self.num_tokens - output.offset
        token_ids = output.new_token_ids[known:]
        logprobs = output.logprobs
        if logprobs is not None and len(logprobs) != len(output.new_token_ids):
            raise ValueError(f"{len(output.new_token_ids)} tokens came with {len(logprobs)} log-probabilities")
        self._num_cached_tokens = max(self._num_cached_tokens, output.num_cached_tokens)
        if output.scheduled_at is not None:
            self._scheduled_at = output.scheduled_at
        of_prompt = None
        if self._prompt_logprobs_due and output.prompt_logprobs is not None:
            of_prompt = prompt_logprobs(self._vocabulary, output.prompt_logprobs)
            self._prompt_logprobs_due = False
        if not token_ids and output.finish_reason is None and of_prompt is None:
            return None

        taken, text = self._take(self._with_text(token_ids, output.finish_reason))
        if self.stopped_by is None:
            taken = len(token_ids)
            if output.finish_reason is not None:
                text += self._rest(taken)
        token_ids = token_ids[:taken]
        finish_reason: FinishReason | None = output.finish_reason
        stop_reason: int | str | None = output.stop_reason
        if finish_reason is FinishReason.REPETITION:
            stop_reason = REPETITION_DETECTED
        offset = self.num_tokens
        self.num_tokens += taken
        is_last = output.finish_reason is not None or self.stopped_by is not None
        timeline = self._timeline(output, at) if is_last or self._first_token_at is None else None
        return RequestOutput(
            request_id=self.request_id,
            offset=offset,
            token_ids=token_ids,
            text=text,
            logprobs=None if logprobs is None else output_logprobs(self._vocabulary, logprobs[known : known + taken]),
            prompt_logprobs=of_prompt,
            finish_reason=finish_reason if self.stopped_by is None else FinishReason.STOP,
            stop_reason=stop_reason if self.stopped_by is None else self.stopped_by,
            error=output.error if self.stopped_by is None else None,
            num_cached_tokens=self._num_cached_tokens,
            timeline=timeline,
            embedding=output.embedding,
            # What is over here and not there does not go on elsewhere.
            kv_ticket=output.kv_ticket if self.stopped_by is None or output.finish_reason is not None else None,
        )

    def _timeline(self, output: EngineCoreOutput, at: float) -> Timeline | None:
        if self._scheduled_at is None:
            return None
        if self._first_token_at is None:
            self._first_token_at = at
        return Timeline(self._arrived_at, self._scheduled_at, self._first_token_at, at, output.num_preemptions)

    def _with_text(self, token_ids: Sequence[int], finish_reason: FinishReason | None) -> Sequence[int]:
        """All but the stop token that ended the request, unless that is to be seen. The last token of an output whose
        grammar is complete is no stop token: it belongs to the text."""
        if finish_reason is not FinishReason.STOP or self._include_stop:
            return token_ids
        return token_ids[:-1] if token_ids and token_ids[-1] in self._stop_token_ids else token_ids

    def _take(self, token_ids: Sequence[int]) -> tuple[int, str]:
        """Turn tokens into text, up to the one that completes a stop string: how many were taken, and the text.

        A stop string counts if text of a later token than the first min_tokens completes it; where it begins does not
        matter. The text of a token is what can be emitted once this token is known.
        """
        if self._matcher is None:
            return len(token_ids), self._detokenizer.feed(token_ids)
        texts = []
        for index, token_id in enumerate(token_ids, start=1):
            new = self._detokenizer.feed((token_id,))
            text, self.stopped_by = self._matcher.feed(new, armed=self.num_tokens + index > self._min_tokens)
            texts.append(text)
            if self.stopped_by is not None:
                return index, "".join(texts)
        return len(token_ids), "".join(texts)

    def _rest(self, taken: int) -> str:
        """The end has come: what the detokenizer and the matcher have withheld."""
        rest = self._detokenizer.flush()
        if self._matcher is None:
            return rest
        text, self.stopped_by = self._matcher.feed(rest, armed=self.num_tokens + taken > self._min_tokens)
        return text if self.stopped_by is not None else text + self._matcher.flush()
