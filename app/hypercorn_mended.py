"""All that stands in for hypercorn's own methods while we serve, however it was launched. Used by app/serving.py,
app/hypercorn_command.py and app/proxy/serving.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app.bounded_send import BoundedSends
from app.chunked_body import framed_here
from app.descriptors import ConnectionLimit, raise_descriptor_limit
from app.http2 import bounded_http2
from app.last_turn import last_turns


@contextmanager
def hypercorn_mended(sends: BoundedSends, *, http2: bool, descriptors_each: int = 1) -> Iterator[None]:
    """`descriptors_each`: how many a connection takes, with what is opened on its behalf."""
    limit = ConnectionLimit(raise_descriptor_limit() // descriptors_each)
    with sends.installed(), framed_here(), last_turns(), bounded_http2(sends, enabled=http2), limit.installed():
        yield
