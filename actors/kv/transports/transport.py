"""What a transport is: its reader's half. The owner's half answers its questions (actors/kv/peer_service).

Nothing here says whether the blocks are still what they were lent as: that is asked afterwards, whatever the transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from actors.kv.conversation import Conversation
from actors.kv.lending import FetchError
from actors.kv.window import Window


class NotStartedError(FetchError):
    """It cannot do it here: nothing is or will be written, and the conversation is good for another transport."""

    def __init__(self, message: str) -> None:
        super().__init__("unreachable", message)


@frozen
class Reading:
    """Of the first blocks that were just lent: from which of the owner's frames into which of ours."""

    sources: Sequence[int]
    num_frames: int
    """Of the owner's window. The sources are below."""
    window: Window
    """Ours. It stays open until the reading is over, also after a cancellation."""
    frames: Sequence[int]

    @property
    def num_bytes(self) -> int:
        return len(self.frames) * self.window.frame_bytes


class Transport(Protocol):
    @property
    def name(self) -> str:
        """As in KvSpec.transports."""

    @property
    def is_local(self) -> bool:
        """It needs a Unix socket between the two."""

    @property
    def stops_at_once(self) -> bool:
        """When `read` is over, however it ended, nothing writes to its frames any more."""

    async def read(self, conversation: Conversation, reading: Reading) -> None:
        """When it returns, each frame is what its source was at some moment since. To be cancelled. Raises FetchError;
        NotStartedError only where nothing has been or will be written."""

    async def settle(self) -> None:
        """Returns once nothing that was begun before will write to our frames. For those that do not stop at once."""
