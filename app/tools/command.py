"""A command of the operator's as a server of tools, over its stdin and stdout. Used by app/tools/transport.py.

The MCP package's own reader puts a line together from its beginning with each piece that comes, without a limit: one
answer of a hundred megabytes would hold up everybody for half a minute.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.abc
import trio
from mcp.client._transport import TransportStreams
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from app.tools.bounded_http import OF_CALLS
from app.tools.command_lines import LineReader
from app.tools.command_log import CommandLog
from app.tools.leash import open_leash

Heard = SessionMessage | Exception

GOODBYE_SECONDS = 2.0
"""For which it may go on after its stdin has ended; and then again after SIGTERM."""
LAST_WORDS_SECONDS = 0.5
"""For which what it has written before it ended is heard, while something that it has started holds its pipes."""
READ_BYTES = 2**18


@asynccontextmanager
async def open_command(command: Sequence[str], label: str) -> AsyncGenerator[TransportStreams]:
    """It ends with the context, or with this process, and what is left of its process group is killed; its stderr goes
    to our log, under `label`. It sees only what the package takes for safe of our environment: no keys. Raises OSError
    for what cannot be run, and in a group ToolError for a message that is too large and answers no call."""
    async with open_leash() as leash:
        process = await trio.lowlevel.open_process(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=get_default_environment(),
            start_new_session=True,
        )
        log = CommandLog(label)
        try:
            await leash.hold(process.pid)
            async with _conversation(process, log) as streams:
                yield streams
        finally:
            with trio.CancelScope(shield=True):
                await _end(process, log)


@asynccontextmanager
async def _conversation(process: trio.Process, log: CommandLog) -> AsyncGenerator[TransportStreams]:
    assert process.stdin is not None, "it has been given a pipe"
    assert process.stdout is not None, "it has been given a pipe"
    assert process.stderr is not None, "it has been given a pipe"
    heard_here, heard = anyio.create_memory_object_stream[Heard](0)
    said, said_here = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_hear, process.stdout, heard_here, log)
            nursery.start_soon(log.listen, process.stderr)
            nursery.start_soon(_say, process.stdin, said_here, heard_here.close)
            nursery.start_soon(_watch, process, heard_here.close)
            yield heard, said
            nursery.cancel_scope.cancel()
    finally:
        for stream in (heard_here, heard, said, said_here):
            stream.close()


async def _hear(stdout: trio.abc.ReceiveStream, heard: anyio.abc.ObjectSendStream[Heard], log: CommandLog) -> None:
    """What is no message is heard as an error of its own, which ends nothing."""
    lines = LineReader(OF_CALLS)
    async with heard:
        while part := await stdout.receive_some(READ_BYTES):
            for line in lines.feed(bytes(part)):
                try:
                    message: Heard = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
                except ValueError as error:
                    log.stray(line)
                    message = error
                try:
                    await heard.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return  # nobody listens any longer


async def _say(
    stdin: trio.abc.SendStream, said: anyio.abc.ObjectReceiveStream[SessionMessage], end_hearing: Callable[[], None]
) -> None:
    async with said:
        async for spoken in said:
            text = spoken.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await stdin.send_all(text.encode() + b"\n")
            except trio.BrokenResourceError:
                end_hearing()  # nobody would answer
                return


async def _watch(process: trio.Process, end_hearing: Callable[[], None]) -> None:
    await process.wait()
    await trio.sleep(LAST_WORDS_SECONDS)
    end_hearing()


async def _end(process: trio.Process, log: CommandLog) -> None:
    assert process.stdin is not None, "it has been given a pipe"
    assert process.stdout is not None, "it has been given a pipe"
    assert process.stderr is not None, "it has been given a pipe"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_drain, process.stdout)
        nursery.start_soon(log.listen, process.stderr)
        await process.stdin.aclose()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with trio.move_on_after(GOODBYE_SECONDS):
                await process.wait()
            if process.returncode is None:
                os.killpg(process.pid, number)
        await process.wait()
        with suppress(ProcessLookupError):  # nothing is left
            os.killpg(process.pid, signal.SIGKILL)
        nursery.cancel_scope.deadline = trio.current_time() + LAST_WORDS_SECONDS
    log.close()
    await process.stdout.aclose()
    await process.stderr.aclose()


async def _drain(stdout: trio.abc.ReceiveStream) -> None:
    """Who writes into a full pipe does not see that stdin has ended."""
    while await stdout.receive_some(READ_BYTES):
        pass
