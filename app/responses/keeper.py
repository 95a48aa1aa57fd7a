"""What keeps responses after they were told, as the loop of a response sees it. app/responses/store.py does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.responses.event_log import EventLog
from app.schemas.responses import InputItem
from protocol.errors import NotFoundError


class ResponseKeeper(Protocol):
    """Of one API server. Not being able to keep something is its own concern: `began` and `ended` raise nothing."""

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all; without, `background` is refused."""
        ...

    async def history(self, response_id: str) -> list[InputItem]:
        """All items up to the end of that response, oldest first: those of the responses before it, its input, its
        output (see `app.responses.input_items.as_input`). Raises NotFoundError with the code
        previous_response_not_found, and BadRequestError for a response that has not ended or has failed."""
        ...

    async def began(self, log: EventLog, input_items: Sequence[InputItem]) -> None:
        """A response with `store` has just begun. `input_items`: the new ones only, each with its id and type."""
        ...

    async def ended(self, log: EventLog) -> None:
        """It is settled how it ended: `log.response` is what to keep, `log.last` its last event. Readers are told only
        when this returns, so that whoever goes on from it finds it. Shielded from cancellation, so bounded in time."""
        ...


class NothingKept:
    """Responses are told and forgotten."""

    keeps = False

    async def history(self, response_id: str) -> list[InputItem]:
        raise NotFoundError(
            f"Previous response with id {response_id[:80]!r} not found: this server keeps no responses",
            param="previous_response_id",
            code="previous_response_not_found",
        )

    async def began(self, log: EventLog, input_items: Sequence[InputItem]) -> None:
        pass

    async def ended(self, log: EventLog) -> None:
        pass
