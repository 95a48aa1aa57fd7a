"""The `h2` package's connection, which reads and writes HTTP/2's frames, with our limits. For app/http2_connection.py.

Header blocks that are written in many frames, or grow when they are unpacked, are bounded by the package: at 64
continuations, and at the size below.
"""

from __future__ import annotations

from typing import Any

import h2.config
import h2.connection
import h2.events
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

from app.http2_scope import MAX_HEADER_BYTES

ENDS_CONNECTION_BYTES = 64 * 2**10
"""More headers than this in one request are not even read to their end."""


class Http2Frames(h2.connection.H2Connection):
    MAX_CLOSED_STREAMS = 4096  # remembered for what comes late; h2's own number would take megabytes

    @property
    def is_over(self) -> bool:
        return self.state_machine.state is h2.connection.ConnectionState.CLOSED

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        """h2 takes every goodbye for the end, also one that only says that nothing more will be asked."""
        state = self.state_machine.state
        found = super()._receive_goaway_frame(frame)
        if frame.error_code == ErrorCodes.NO_ERROR:
            self.state_machine.state = state
        return found


def make_frames(max_streams: int) -> Http2Frames:
    """A server's, before anything is said."""
    frames = Http2Frames(h2.config.H2Configuration(client_side=False, header_encoding=None))
    values: dict[Any, int] = {
        SettingCodes.MAX_CONCURRENT_STREAMS: max_streams,
        SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
        SettingCodes.ENABLE_PUSH: 0,
    }
    frames.local_settings = Settings(client=False, initial_values=values)
    frames.decoder.max_header_list_size = ENDS_CONNECTION_BYTES
    return frames
