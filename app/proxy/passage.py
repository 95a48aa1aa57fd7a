"""What became of one request: by which servers its answer came about. Noted by app/proxy/forwarding.py; told in the
access log, and once in the counts.
"""

from __future__ import annotations

from typing import cast

from attrs import define
from quart import Request

from app.access_log import Access, access_of
from app.proxy.address import UpstreamAddress
from app.proxy.counts import ProxyCounts, Way
from app.tracing.attributes import concluded
from app.tracing.request_trace import Outcome, RequestTrace


@define(eq=False)
class Passage:
    way: Way | None = None
    """None: it is no request for an answer, or was left before there was one."""
    prefill: UpstreamAddress | None = None
    """Who has computed the prompt, or refused to."""
    decode: UpstreamAddress | None = None
    """Who was asked last."""

    def __str__(self) -> str:
        return f"way={self.way or '-'} prefill={self.prefill or '-'} decode={self.decode or '-'}"

    def is_not_taken(self) -> None:
        """What the prefill server has computed is of no use."""
        if self.way == "handed_over":
            self.way = "not_taken"

    def end(self, counts: ProxyCounts) -> None:
        """Nothing more comes to light."""
        if self.way is not None:
            counts.went(self.way)


def passed(trace: RequestTrace, access: Access, ended: float) -> Outcome:
    """For its span, when it is over."""
    passage = cast("Passage", access.work)
    told = {"prefill": passage.prefill, "decode": passage.decode, "way": passage.way}
    return concluded({f"trillm.proxy.{name}": str(one) for name, one in told.items() if one is not None}, access, ended)


def passage_of(request: Request) -> Passage:
    """Of the request that is being answered."""
    return cast("Passage", access_of(request).work)
