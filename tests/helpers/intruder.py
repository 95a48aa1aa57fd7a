"""Frames for each socket as somebody might send them who is not one of ours: damaged, of a wrong epoch or request, with
wrong numbers. None of them names a live request: that would be a valid message."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from protocol import api, codec, messages, operations
from protocol.codec import Codec
from protocol.engine_stats import EngineStats
from protocol.ids import EngineIndex, Epoch
from protocol.messages import FinishReason
from protocol.sampling import SamplingParams
from tests.helpers.garbled import garbled

PARAMS = SamplingParams(
    max_tokens=3, seed=1, logit_bias={5: 1.5}, allowed_token_ids=[1, 2], bad_words_token_ids=[[1, 2]], stop=["x"],
    logprobs=2, prompt_logprobs=1, eos_token_ids=[2], stop_token_ids=[7], top_k=3, top_p=0.5, min_p=0.1,
)  # fmt: skip
LOGPROBS = messages.TokenLogprobs([7, 8], [-0.5, -1.5], 1)
STATS = EngineStats(1, 2, 3, 4, 5, 6, 7, 8)
MARK = "stranger"
"""Every request that is named is called so, and damaged names are none of ours either."""


def templates(epoch: int) -> dict[str, list[object]]:
    """Per codec, what is damaged."""
    request = messages.EngineCoreRequest(epoch, 0, MARK, [5, 6], PARAMS, 1.5, 3, [9])
    abort = messages.AbortRequest(epoch, 0, [MARK])
    output = messages.EngineCoreOutput(MARK, 4, [7], [LOGPROBS], [None, LOGPROBS], FinishReason.STOP, 7)
    told = messages.RequestOutput(MARK, 4, [7], "a", None, None, FinishReason.STOP, "x")
    reply = messages.UtilityReply(epoch, 0, 5, 10**6, operations.EngineState(STATS, [MARK], "idle"))
    return {
        "ENGINE_INPUT": [
            request,
            abort,
            messages.UtilityRequest(epoch, 0, 10**6, operations.GetState()),
            messages.ResyncRequest(epoch, 0, {MARK: 4}),
        ],
        "ENGINE_OUTPUT": [
            messages.Welcome(epoch, 0, 0),
            messages.EngineCoreOutputs(epoch, 0, 3, [output], STATS),
            messages.EngineHeartbeat(epoch, 0, 4, STATS),
            reply,
        ],
        "OUTPUT_INPUT": [request, abort, messages.AttachEngine(0, 0, "ipc://a", "nonsense")],
        "APP_INPUT": [
            messages.RequestOutputs(0, epoch, [told], STATS),
            messages.EngineAttached(0, epoch + 1),
            messages.UtilityAnswer(0, reply),
        ],
        "API_INPUT": [
            api.EngineWent(EngineIndex(0), Epoch(epoch), "no", False),
            api.OutputWent("no"),
            api.HouseOver("no"),
            api.StopServing(15),
            api.SharedIs(1, "adapter a", b"x"),
        ],
        "HOUSE_INPUT": [api.CannotGoOn("no"), api.Share(1, "adapter a", b"x"), api.PageTold(0, b"x")],
    }


def frames(name: str, epoch: int, count: int, seed: int = 0) -> Iterator[bytes]:
    """So many for the socket of this codec."""
    encoded = [codec.ENCODER.encode(message) for message in templates(epoch)[name]]
    for number in range(count):
        yield encoded[number % len(encoded)] if number % 5 == 0 else garbled(encoded, seed + number)


def decodable(name: str, epoch: int, count: int, seed: int = 0) -> Iterator[object]:
    """What of them a link hands on."""
    codecs: dict[str, Codec[object]] = vars(codec)
    for frame in frames(name, epoch, count, seed):
        try:
            yield codecs[name].decode(frame)
        except msgspec.DecodeError:
            continue
