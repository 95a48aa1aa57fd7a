"""Short ways of writing what an app and an engine say to the output processor."""

from __future__ import annotations

from protocol.engine_stats import EngineStats
from protocol.ids import ClientIndex, Epoch, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from protocol.sampling import SamplingParams


def core_request(request_id="a", prompt=(3,), continuation=(), **params) -> EngineCoreRequest:
    """A request; further arguments are sampling parameters."""
    return EngineCoreRequest(
        epoch=Epoch(1),
        client_index=ClientIndex(0),
        request_id=RequestId(request_id),
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(max_tokens=params.pop("max_tokens", 100), seed=0, **params),
        arrival_time=0.0,
        continuation_token_ids=list(continuation),
    )


def core_output(offset, token_ids, request_id="a", **fields) -> EngineCoreOutput:
    return EngineCoreOutput(RequestId(request_id), offset, list(token_ids), **fields)


def core_outputs(*outputs: EngineCoreOutput) -> EngineCoreOutputs:
    """One step's frame. The processor does not look at sequence numbers."""
    return EngineCoreOutputs(Epoch(1), ClientIndex(0), 0, list(outputs), EngineStats())
