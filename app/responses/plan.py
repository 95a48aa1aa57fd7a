"""A response that can be begun: whatever could be refused has been. Made by app/responses/prepare.py from a request,
run by app/responses/run.py, in the request's own task or in the background.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from app.chat import PreparedChat
from app.responses.tool_box import ToolBox
from app.schemas.chat import ChatRequest
from app.schemas.responses import InputItem, Response, ResponsesRequest


@frozen
class Plan:
    """Of one response."""

    body: ResponsesRequest
    response: Response
    """As it begins: queued in the background, else in_progress."""
    input_items: Sequence[InputItem]
    """The new ones, each with id and type: what `GET /v1/responses/{id}/input_items` lists and a store keeps."""
    items: Sequence[InputItem]
    """The whole conversation: those of earlier responses, then the new ones."""
    chat_request: ChatRequest
    """Of the first turn; those of later ones differ in their messages, tools and bounds."""
    chat: PreparedChat
    """The first turn's."""
    box: ToolBox | None

    @property
    def stores(self) -> bool:
        return self.response.store
