"""What one API server has to do with the others on the same listening socket, where there are others.

The routes are written against this; app/remote_peers.py does it over the supervisor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final

from attrs import frozen

from app.adapters import Adapter
from app.metrics_page import Page


@frozen
class CountedElsewhere:
    """What another API server counts."""

    page: Page
    is_live: bool
    """False: it is down, or late, and this is its last word: what it counted counts, what it had open does not."""


class Peers(Protocol):
    """All other API servers."""

    async def pages(self) -> Sequence[CountedElsewhere]:
        """Of each that has ever said something. What cannot be had within seconds is left out."""

    async def adapter_came(self, adapter: Adapter) -> None:
        """They serve it, too; one of that name is replaced. Raises UnavailableError if they cannot be told."""

    async def adapter_went(self, name: str) -> None:
        """They serve it no more. Raises UnavailableError if they cannot be told."""


@final
class NoPeers:
    """There is one API server."""

    async def pages(self) -> Sequence[CountedElsewhere]:
        return ()

    async def adapter_came(self, adapter: Adapter) -> None:
        pass

    async def adapter_went(self, name: str) -> None:
        pass
