"""What goes wrong with tools of other servers. Told to the model, and to the client in the item of the call."""

from __future__ import annotations

from protocol.errors import TrillmError


class ToolError(TrillmError):
    """A tool, or the server that has it, did not do what it was asked for. No outage of ours. Where the server is, is
    not told: whoever tells the message says which server is meant, by its label.

    `was_not_run`: the call certainly did not reach the tool, so another try is no second call. `timed_out`: it took
    longer than --tool-timeout.
    """

    status = 424
    type = "external_connector_error"
    code = "external_connector_error"

    def __init__(self, message: str, *, was_not_run: bool = False, timed_out: bool = False) -> None:
        super().__init__(message)
        self.was_not_run = was_not_run
        self.timed_out = timed_out
