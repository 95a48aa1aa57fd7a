"""Whether a decode server had found anything of a prompt, as the usage at the end of its answer says. Pure; used by
app/proxy/passed_body.py.

Answers are not read for it: it looks at their last bytes, once. Within a text of JSON's a quote has a backslash before
it, so that what looks like the field is the field.
"""

from __future__ import annotations

import re
from typing import final

CACHED = re.compile(rb'"prompt_tokens_details"\s*:\s*\{\s*"cached_tokens"\s*:\s*(\d{1,9})\b')
MOST_BYTES = 4096


@final
class UsageTail:
    """Of one answer, whole or a stream of events."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def take(self, data: bytes) -> None:
        """The next bytes."""
        self._kept += data
        if len(self._kept) > 2 * MOST_BYTES:
            del self._kept[:-MOST_BYTES]

    def num_cached_tokens(self) -> int | None:
        """Of the prompt: what it had itself and what it has taken over. None: it does not say."""
        found = CACHED.findall(self._kept)
        return int(found[-1]) if found else None
