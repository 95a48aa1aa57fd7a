"""`trillm status`: how a server is, once or as it goes on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import trio
from cyclopts import Group, Parameter

from app.commands.closed_output import nobody_reads
from app.commands.ending import refuse
from app.commands.interruption import STATUS as INTERRUPTED
from app.commands.interruption import unless_interrupted
from app.commands.server_flags import ServerFlags
from protocol.errors import BadRequestError, TrillmError

if TYPE_CHECKING:
    from app.api_client.client import ApiClient
    from app.commands.status_reading import Reading
    from app.commands.status_screen import Screen

HOW = Group("How it is shown", sort_key=0)
READY, NOT_READY, NO_ANSWER = 0, 1, 3
PATIENCE_SECONDS = 5.0
"""For one reading."""
LEAST_SECONDS, MOST_SECONDS = 0.1, 3600.0


def status(
    *,
    watch: Annotated[bool, Parameter(name=("--watch", "-w"), group=HOW, negative=(), show_default=False)] = False,
    interval: Annotated[float, Parameter(group=HOW)] = 1.0,
    json: Annotated[bool, Parameter(group=HOW, negative=(), show_default=False)] = False,
    server: Annotated[ServerFlags | None, Parameter(name="*")] = None,
) -> int:
    """Tell how a server is: its model, its actors and their requests.

    Of a server that is not trillm it tells what /health and /metrics say, under vLLM's names; of a `trillm proxy`,
    which servers are behind it.

        trillm status
        trillm status --watch
        trillm status --json | jq .engines
        until trillm status >/dev/null; do sleep 1; done

    Exit status: 0 ready, 1 not ready, 3 no answer (or none without a key), 2 for a wrong flag.

    Parameters
    ----------
    watch
        Go on until Ctrl-C, also over restarts of the server.
    interval
        Seconds between two readings.
    json
        As JSON; with --watch one line for each reading.
    """
    if not LEAST_SECONDS <= interval <= MOST_SECONDS:
        raise BadRequestError(f"--interval must be from {LEAST_SECONDS:g} to {MOST_SECONDS:g} s, not {interval:g}")
    from app.api_client.client import ApiClient
    from app.commands.status_screen import open_screen

    client = ApiClient((server or ServerFlags()).place(), answer_seconds=PATIENCE_SECONDS)
    try:
        with open_screen(sys.stdout, is_json=json, goes_on=watch) as screen:
            return trio.run(_watch, client, screen, interval) if watch else trio.run(_tell, client, screen)
    except TrillmError as error:
        refuse(error.message)
        return NO_ANSWER
    except BrokenPipeError:
        return nobody_reads()
    except KeyboardInterrupt:
        return INTERRUPTED


async def _tell(client: ApiClient, screen: Screen) -> int:
    from app.commands.status_reading import read_server

    reading: Reading | None = None

    async def read() -> None:
        nonlocal reading
        async with client:
            reading = await read_server(client)

    await unless_interrupted(read)
    if reading is None:
        return INTERRUPTED
    screen.show(reading, str(client.place))
    return READY if reading.ready else NOT_READY


async def _watch(client: ApiClient, screen: Screen, interval: float) -> int:
    """Until it is interrupted, which is how it ends well."""

    async def go_on() -> None:
        async with client:
            await watch_server(client, screen, interval)

    await unless_interrupted(go_on)
    return READY


async def watch_server(client: ApiClient, screen: Screen, interval: float) -> None:
    """For ever."""
    from app.api_client.call_error import NoAnswerError, RefusedError
    from app.commands.status_rates import Rates
    from app.commands.status_reading import read_server

    rates = Rates()
    answered_at = trio.current_time()
    while True:
        try:
            reading = await read_server(client)
        except (NoAnswerError, RefusedError) as error:
            rates.miss()
            screen.show_silence(trio.current_time() - answered_at, error.message)
        else:
            answered_at = trio.current_time()
            rates.take(reading, answered_at)
            screen.show(reading, str(client.place), rates)
        await trio.sleep(interval)
