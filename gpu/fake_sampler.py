"""How the dummy runner chooses a token: SamplingParams as the real sampler understands them, over a few candidates.

Tokens at the model's floor are chosen only where every candidate is forbidden. Penalties move candidates only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from gpu.fake_model import CANDIDATE_LOGITS, FLOOR_LOGIT, FakeLogits, FakeModel, mix, unit
from protocol.messages import TokenLogprobs
from protocol.sampling import SamplingParams

IsAllowed = Callable[[int], bool]


def sample(
    model: FakeModel,
    logits: FakeLogits,
    params: SamplingParams,
    prompt: list[int],
    output: list[int],
    bitmask: bytes | None,
) -> int | None:
    """The token after prompt and output; None if nothing is allowed."""
    is_allowed = _allowance(params, output, bitmask)
    raw = dict(logits.candidates)
    if bitmask is not None:
        for token_id in model.closing:  # so that strings and lists end
            raw.setdefault(token_id, CANDIDATE_LOGITS * unit(mix(logits.state, token_id)))
    for token_id in (*params.logit_bias, *(params.allowed_token_ids or ())):
        raw.setdefault(token_id, FLOOR_LOGIT)
    candidates = {t: logit for t, logit in _moved(raw, params, prompt, output).items() if is_allowed(t)}
    if not candidates:
        return _any_allowed(logits, is_allowed, bitmask)
    if params.temperature == 0:
        return max(candidates, key=lambda t: (candidates[t], -t))
    kept = _truncated({t: logit / params.temperature for t, logit in candidates.items()}, params)
    noise = mix(params.seed, len(prompt) + len(output))
    return max(kept, key=lambda t: (kept[t] + _gumbel(mix(noise, t)), -t))


def logprobs_of(logits: FakeLogits, token_id: int, count: int) -> TokenLogprobs:
    """The token that stands there, then the `count` best."""
    token_ids = [token_id, *logits.best(count)]
    return TokenLogprobs(token_ids, [logits.logprob(t) for t in token_ids], logits.rank(token_id))


def _allowance(params: SamplingParams, output: list[int], bitmask: bytes | None) -> IsAllowed:
    forbidden = {words[-1] for words in params.bad_words_token_ids if _ends_with(output, words[:-1])}
    if len(output) < params.min_tokens:
        forbidden.update(params.eos_token_ids, params.stop_token_ids)
    allowed = None if params.allowed_token_ids is None else frozenset(params.allowed_token_ids)

    def is_allowed(token_id: int) -> bool:
        if token_id in forbidden or (allowed is not None and token_id not in allowed):
            return False
        return bitmask is None or bool(bitmask[token_id >> 3] >> (token_id & 7) & 1)

    return is_allowed


def _ends_with(output: list[int], words: list[int]) -> bool:
    return not words or output[-len(words) :] == words


def _moved(raw: dict[int, float], params: SamplingParams, prompt: list[int], output: list[int]) -> dict[int, float]:
    """Penalties, then biases."""
    moved = dict(raw)
    if params.repetition_penalty != 1.0:
        for token_id in moved.keys() & {*prompt, *output}:
            logit = moved[token_id]
            moved[token_id] = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
    if params.presence_penalty or params.frequency_penalty:
        for token_id, count in Counter(output).items():
            if token_id in moved:
                moved[token_id] -= params.presence_penalty + count * params.frequency_penalty
    for token_id, bias in params.logit_bias.items():
        moved[token_id] += bias
    return moved


def _truncated(logits: dict[int, float], params: SamplingParams) -> dict[int, float]:
    """The tokens that top_k, top_p and min_p leave, each judging what the one before it left."""
    best = sorted(logits, key=lambda t: (-logits[t], t))[: params.top_k or None]
    top = logits[best[0]]
    weights = [math.exp(logits[t] - top) for t in best]
    enough = params.top_p * math.fsum(weights)
    kept: dict[int, float] = {}
    before = 0.0
    for token_id, weight in zip(best, weights, strict=True):
        if (before >= enough and kept) or weight < params.min_p:
            break
        kept[token_id] = logits[token_id]
        before += weight
    return kept


def _gumbel(bits: int) -> float:
    return -math.log(-math.log(unit(bits) or 2.0**-53))


def _any_allowed(logits: FakeLogits, is_allowed: IsAllowed, bitmask: bytes | None) -> int | None:
    """The next allowed token from a hashed place on, round the vocabulary."""
    vocab_size = logits.vocab_size
    bits = (1 << vocab_size) - 1
    if bitmask is not None:
        bits &= int.from_bytes(bitmask, "little")
    start = mix(logits.state, vocab_size) % vocab_size
    for first, rest in ((start, bits >> start), (0, bits)):
        while rest:
            token_id = first + (rest & -rest).bit_length() - 1
            if is_allowed(token_id):
                return token_id
            rest &= rest - 1
    return None
