"""What becomes of a request that the proxy has read: which servers are asked, in which order, until one has answered.

As long as nothing has gone to the client, another server can do what one has failed to do. Which one is chosen is
decided by app/proxy/upstreams.py, and what it is sent by app/proxy/handover.py; here it is done.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

import attrs
import msgspec
import trio
from attrs import frozen

from app.access_log import printable
from app.proxy.counts import ProxyCounts, Way
from app.proxy.handover import Handover, complaint_of_transfer, read_transfer
from app.proxy.passage import Passage
from app.proxy.passed_headers import Headers
from app.proxy.upstream import Upstream
from app.proxy.upstream_client import Answer, Outgoing, UpstreamClient
from app.proxy.upstream_error import UpstreamError
from app.proxy.upstreams import Upstreams
from app.tracing.request_trace import traced_phase

logger = logging.getLogger("trillm.proxy")

MOST_PREFILL_BYTES = 16 * 2**20
"""Of a prefill server's answer, which has one token and where the KV lies."""
MOST_REFUSAL_BYTES = 2**20
NOT_IMPLEMENTED = 501
MAY_BE_OF_THE_TRANSFER = (400, 422, NOT_IMPLEMENTED)
"""What a decode server says that cannot do with kv_transfer_params."""
TOO_BUSY = (429, 503)
"""Another server may have room."""


@frozen
class Refusal:
    """An answer that was read whole, to be told if nobody has a better one."""

    status: int
    headers: Headers
    body: bytes


@frozen
class Transfer:
    """What has come of a prefill server."""

    params: msgspec.Raw | None
    """For the decode server. None: nothing was kept."""


@frozen
class Forwarding:
    """Of one proxy."""

    client: UpstreamClient
    prefill: Upstreams
    decode: Upstreams
    counts: ProxyCounts
    prefill_timeout: float = 60.0
    prefill_min_bytes: int = 0

    async def answer(
        self, handover: Handover, outgoing: Outgoing, stack: AsyncExitStack, passage: Passage
    ) -> Answer | Refusal:
        """Of a request for an answer, whose body is in `handover`. What is opened is left with the stack, and how it
        went noted in `passage`.

        Raises UpstreamError if nobody answers, and UnavailableError when all is to end."""
        way: Way = "one_server"
        params: msgspec.Raw | None = None
        if handover.goes_by_two(self.prefill_min_bytes):
            with traced_phase("prefill"):
                prefilled = await self._prefill(attrs.evolve(outgoing, body=handover.for_prefill()), passage)
            match prefilled:
                case Refusal() as refusal:
                    passage.way = "refused"
                    return refusal
                case Transfer() as transfer:
                    params = transfer.params
                    way = "not_kept" if params is None else "handed_over"
                case None:
                    way = "recomputed"
        passage.way = way
        first = attrs.evolve(outgoing, body=handover.for_decode(params))
        # Who has broken off may have fetched the KV, which is given away only once.
        again = first if params is None else attrs.evolve(outgoing, body=handover.for_decode(None))
        with traced_phase("begin_answer"):
            return await self._decode(first, again, stack, passage)

    async def pass_on(self, outgoing: Outgoing, stack: AsyncExitStack, passage: Passage) -> Answer | Refusal:
        """Any other request, to a decode server. Raises as `answer`; it is sent twice only if no server can have begun
        with it."""
        return await self._decode(outgoing, None, stack, passage)

    async def _decode(
        self, first: Outgoing, again: Outgoing | None, stack: AsyncExitStack, passage: Passage
    ) -> Answer | Refusal:
        """`again`: what other servers are sent when one has failed that had the request, and the same one when it has
        refused only the KV."""
        tried: set[Upstream] = set()
        same: Upstream | None = None
        outgoing: Outgoing | None = first
        end: Refusal | UpstreamError | None = None
        while outgoing is not None:
            also_resting = not isinstance(end, Refusal)
            upstream = same or self.decode.choose(trio.current_time(), tried, also_resting=also_resting)
            same = None
            if upstream is None:
                break
            tried.add(upstream)
            passage.decode = upstream.address
            async with AsyncExitStack() as attempt:
                try:
                    opened = self.client.open_answer(upstream, outgoing)
                    answer = await attempt.enter_async_context(opened)
                    if answer.status in TOO_BUSY:
                        self.client.is_busy(upstream)
                        end = await _refusal(answer)
                        continue
                    self.client.is_well(upstream)
                    if again is None or outgoing is again or answer.status not in MAY_BE_OF_THE_TRANSFER:
                        await stack.enter_async_context(attempt.pop_all())
                        return answer
                    refusal = await _refusal(answer)
                    if not _is_of_the_transfer(upstream, refusal):
                        return refusal
                    passage.is_not_taken()
                    same, outgoing = upstream, again
                except UpstreamError as error:
                    end = end if isinstance(end, Refusal) else error
                    if not error.is_unsent:
                        passage.is_not_taken()
                        outgoing = again
        assert end is not None, "there is a decode server, and none was asked"
        if isinstance(end, Refusal):
            return end
        raise end

    async def _prefill(self, outgoing: Outgoing, passage: Passage) -> Transfer | Refusal | None:
        """None: no prefill server has done it, in time."""
        began = trio.current_time()
        tried: set[Upstream] = set()
        while (upstream := self.prefill.choose(trio.current_time(), tried)) is not None:
            tried.add(upstream)
            with trio.move_on_at(began + self.prefill_timeout) as scope:
                try:
                    found = await self._prefill_at(upstream, outgoing)
                except UpstreamError:
                    continue
                if found is not None:
                    passage.prefill = upstream.address
                    self.counts.prefill_seconds.observe(trio.current_time() - began)
                    return found
            if scope.cancelled_caught:
                late = TimeoutError(f"a prompt was not computed within {self.prefill_timeout:g} s (--prefill-timeout)")
                self.client.failed(upstream, "late", late)
                return None
        return None

    async def _prefill_at(self, upstream: Upstream, outgoing: Outgoing) -> Transfer | Refusal | None:
        """None: it does not do it. Raises UpstreamError."""
        async with self.client.open_answer(upstream, outgoing) as answer:
            if answer.status in TOO_BUSY:
                self.client.is_busy(upstream)
                return None
            if 400 <= answer.status < 500:
                self.client.is_well(upstream)
                return await _refusal(answer)
            if answer.status != 200:
                told = (await answer.read(MOST_REFUSAL_BYTES))[:200]
                raise self.client.failed(upstream, "broken", ValueError(f"HTTP {answer.status}: {told!r}"))
            body = await answer.read(MOST_PREFILL_BYTES)
            try:
                transfer = Transfer(read_transfer(body))
            except msgspec.DecodeError as error:
                raise self.client.failed(upstream, "broken", error) from error
            self.client.is_well(upstream)
            return transfer


def _is_of_the_transfer(upstream: Upstream, refusal: Refusal) -> bool:
    """Whether a decode server would answer without kv_transfer_params. That it has to is logged, once in a while."""
    complaint = complaint_of_transfer(refusal.body)
    if complaint is None:
        return False
    if not upstream.is_warned_of(trio.current_time()):
        if refusal.status == NOT_IMPLEMENTED:
            fault = "has no KV connector: it needs a --kv-transfer-config"
        else:
            fault = f"does not take over: {printable(complaint)}"
        logger.warning("%s server %s %s; the prompt is computed there", upstream.role, upstream.address, fault)
    return True


async def _refusal(answer: Answer) -> Refusal:
    return Refusal(answer.status, answer.headers, await answer.read(MOST_REFUSAL_BYTES))
