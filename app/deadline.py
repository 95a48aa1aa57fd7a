"""When a request has to be over: the shorter of its own `timeout` and the operator's --request-timeout.

The routes make one when a request's body is here, wait under it for grammars and tokenising, and hand it to the engine
client, which ends what is late; the engine drops it too, should nobody tell it to.

A request that is late gets a 504 before its answer has begun, and an error frame within a stream. Not a 408, which says
that the client was slow to send. Clients try both again, though what did not fit into its time on a busy server will
not fit the next time either, so the answer says X-Should-Retry: false, which OpenAI's own clients obey.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from attrs import frozen

from app.checks import short
from app.limits import Limits
from protocol.errors import BadRequestError, DeadlineError

GRACE_SECONDS = 1.0
"""How much later the engine drops a request than we do, so that it is our word that the client gets."""


@frozen
class Deadline:
    """Of one request, with all its choices."""

    at: float
    """On trio's clock."""
    seconds: float
    limit: str
    """What set it: "timeout" or "--request-timeout"."""

    def error(self) -> DeadlineError:
        whose = "its timeout" if self.limit == "timeout" else f"the server's {self.limit}"
        param = "timeout" if self.limit == "timeout" else None
        return DeadlineError(f"The request was not finished within {self.seconds:g} s ({whose})", param=param)


def deadline_of(timeout: float | None, limits: Limits) -> Deadline | None:
    """From now on; None without a limit. Raises BadRequestError for a timeout that is none."""
    if timeout is not None and not 0 < timeout < math.inf:  # NaN is not, either
        raise BadRequestError(
            f"timeout must be a number of seconds above 0 and finite, not {short(timeout)}", param="timeout"
        )
    if timeout is not None and timeout <= limits.request_seconds:
        return Deadline(trio.current_time() + timeout, timeout, "timeout")
    if limits.request_seconds < math.inf:
        return Deadline(trio.current_time() + limits.request_seconds, limits.request_seconds, "--request-timeout")
    return None


@contextmanager
def within(deadline: Deadline | None) -> Iterator[None]:
    """For what is done before the answer is begun. Raises DeadlineError when it is late."""
    if deadline is None:
        yield
        return
    with trio.move_on_at(deadline.at) as scope:
        yield
    if scope.cancelled_caught:
        raise deadline.error()
