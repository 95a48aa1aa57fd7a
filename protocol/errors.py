"""Few exceptions, each answering one question: whose fault is it, and may one try again?

They carry what the OpenAI error body needs. app/failures.py turns them into HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator


class TrillmError(Exception):
    """Root of what we raise on purpose. `status` is the HTTP status, `type` and `code` go into the error body."""

    status = 500
    type = "InternalServerError"
    code: str | None = None
    retry_after: float | None = None
    """Seconds after which another try makes sense."""
    is_worth_retrying: bool | None = None
    """False tells clients that retry by the status alone to let it be."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class BadRequestError(TrillmError):
    """The caller's mistake, found before the engine saw it. Names the field, the limit and the value."""

    status = 400
    type = "invalid_request_error"


class GrammarError(BadRequestError):
    """The grammar cannot be built, or not within the limits. The message is about the grammar only."""

    code = "invalid_grammar"


class NotFoundError(BadRequestError):
    """The named model or route does not exist here."""

    status = 404
    code = "not_found"


class PayloadTooLargeError(BadRequestError):
    status = 413
    code = "payload_too_large"


class UnsupportedMediaTypeError(BadRequestError):
    status = 415
    code = "unsupported_media_type"


class ConflictError(BadRequestError):
    """The server is in no state for this: there is nothing to stop, or what was begun is not over."""

    status = 409
    code = "conflict"


class NotImplementedHereError(BadRequestError):
    """Well-formed, but trillm does not do it (yet)."""

    status = 501
    code = "not_implemented"


class UnavailableError(TrillmError):
    """Not now: starting, draining, restarting, or too many requests queued. The request was not run."""

    status = 503
    type = "service_unavailable_error"
    retry_after = 1.0


class EngineDeadError(TrillmError):
    """The process that ran this request died; its answer is lost."""

    code = "engine_dead"


class OperationFailedError(TrillmError):
    """An engine has answered that it could not do what it was told to."""

    code = "operation_failed"


class RequestFailedError(TrillmError):
    """The engine or the output handler ended this one request with an error."""

    code = "request_failed"


class DeadlineError(TrillmError):
    """The request was not finished within its time. Names the limit."""

    status = 504
    type = "timeout_error"
    code = "deadline_exceeded"
    is_worth_retrying = False


class CheckpointError(TrillmError):
    """The model cannot be served as it lies there. Names file, tensor and what was expected; for the operator."""


class UnknownVariantError(CheckpointError):
    """The checkpoint is in order, and its kind of model is none that gpu/models/decoder computes."""


class StartError(TrillmError):
    """An actor did not start: with the reason it gave, or how it ended."""


class RankLostError(TrillmError):
    """A rank of this engine is gone, or has not come in time. The others are of no use without it: they end, and the
    engine is started again with all its ranks."""

    code = "rank_lost"

    def __init__(self, rank: int | None, reason: str, waited_for: str) -> None:
        super().__init__(f"{'a rank' if rank is None else f'rank {rank}'} {reason}, waited for in {waited_for}")
        self.rank = rank
        """Its place in the world, if it is known."""
        self.waited_for = waited_for


class InvalidKeyError(BadRequestError):
    status = 401
    code = "invalid_api_key"


class NotLocalError(BadRequestError):
    """There is no API key, and who asks comes from elsewhere or asks for another name."""

    status = 403
    code = "loopback_only"


class NotAllowedOriginError(BadRequestError):
    """A web page of an origin that the operator has not allowed, or for what it has not."""

    status = 403
    code = "origin_not_allowed"


class MethodNotAllowedError(BadRequestError):
    """The route exists, with other methods."""

    status = 405
    code = "method_not_allowed"


class RequestTimeoutError(BadRequestError):
    """The body did not arrive in time."""

    status = 408
    code = "request_timeout"


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The errors themselves, out of groups within groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error
