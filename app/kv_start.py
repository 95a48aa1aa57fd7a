"""What can be found out about KV connectors before any process is started: they are a cache, which the engines do
without whatever happens to it, so that what an operator has asked for in vain would only be a line in a log. Used by
app/launch.py and app/hypercorn_command.py.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from app.kv_config import GIBIBYTE, KvTransferConfig
from protocol.errors import StartError
from protocol.host_memory import available_memory, total_memory
from protocol.kv_directory import stranger
from protocol.net_address import netloc

if TYPE_CHECKING:
    from app.settings import Settings

LEAVE_SECONDS = 3.0
"""For connectors of a server that was killed, which leave by themselves within a second or two."""
AGAIN_SECONDS = 0.1
DISK_SECONDS = 5.0
"""From when on a directory counts as one that does not answer."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

logger = logging.getLogger("trillm")


async def check_connectors(settings: Settings) -> None:
    """Says what the operator should know. Raises StartError for what cannot be had, and BadRequestError for a key file
    that cannot be read."""
    if (asked := settings.connectors) is None:
        return
    check_memory(settings, asked.window_bytes)
    if settings.prefill_engines:
        logger.info("%s", who_does_what(settings.prefill_engines, settings.decode_engines))
    if (transfer := settings.kv_transfer) is not None:
        if transfer.names_address and transfer.kv_connector_extra_config.key_file is None:
            logger.warning(
                "--kv-transfer-config has no key_file: no other server can take over prompts from this one, nor this "
                "one from another"
            )
        for index in range(settings.num_engines):
            await check_address(transfer, index)
    if settings.kv_offloading_path is not None:
        await check_disk(settings.kv_offloading_path)


def who_does_what(num_prefill: int, num_decode: int) -> str:
    """In one line, for the log."""
    prompts = f"engine-0 to engine-{num_prefill - 1} compute" if num_prefill > 1 else "engine-0 computes"
    first, last = num_prefill, num_prefill + num_decode - 1
    others = f"engine-{first} to engine-{last} go" if num_decode > 1 else f"engine-{first} goes"
    return f"{prompts} prompts, {others} on with them"


def check_memory(settings: Settings, window_bytes: int) -> None:
    """All windows together, which are taken page by page as they are used. Raises StartError."""
    total, available = total_memory(), available_memory()
    if settings.kv_offloading_size:
        what = f"--kv-offloading-size {settings.kv_offloading_size:g}:"
    else:
        what = f"without --kv-offloading-size, for {settings.num_engines} engines:"
    window = f"KV connectors may take {window_bytes / GIBIBYTE:.1f} GiB of memory"
    if window_bytes > total:
        raise StartError(f"{what} {window}, and this machine (or its control group) has {total / GIBIBYTE:.1f} GiB")
    if window_bytes > available:
        logger.warning("%s %s, of which %.1f GiB are available now", what, window, available / GIBIBYTE)


# ------------------------------------------------------------------ the address


async def check_address(transfer: KvTransferConfig, index: int) -> None:
    """Whether the connector of this engine can be heard by other servers, as it is about to be. Raises StartError."""
    host, port = transfer.host, transfer.kv_port and transfer.kv_port + index
    given_up_at = trio.current_time() + LEAVE_SECONDS
    while True:
        try:
            family, kind, protocol, _, address = (await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
            return try_to_bind(family, kind, protocol, address)
        except socket.gaierror as error:
            raise StartError(f"--kv-transfer-config: kv_ip {host} has no address: {error.strerror}") from error
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise StartError(
                    f"--kv-transfer-config: kv_ip {host} is no address of this host, and other servers could not "
                    "reach its KV connectors there"
                ) from error
            if error.errno != errno.EADDRINUSE:
                raise cannot_be_heard(index, host, port, error.strerror or str(error)) from error
            if trio.current_time() >= given_up_at:
                why = (
                    "another process listens there. Two servers on one machine need a kv_port each, and each of their "
                    "engines takes one, counting up from it"
                )
                raise cannot_be_heard(index, host, port, why) from error
        await trio.sleep(AGAIN_SECONDS)


def cannot_be_heard(index: int, host: str, port: int, why: str) -> StartError:
    where = netloc(host, port)
    return StartError(f"--kv-transfer-config: the KV connector of engine-{index} cannot be heard at {where}: {why}")


def try_to_bind(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> None:
    """As actors/kv/connecting does. Raises OSError."""
    with socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


# ------------------------------------------------------------------ the disk


async def check_disk(path: Path) -> None:
    """One that does not answer is the connectors' to wait for. Raises StartError."""
    with trio.move_on_after(DISK_SECONDS) as patience:
        mode = await trio.to_thread.run_sync(mode_of_directory, path, abandon_on_cancel=True)
        if mode & OTHERS_WRITE:
            logger.warning(
                "--kv-offloading-path %s can be written to by other users (mode %o): who does so decides what is found "
                "there, and so what is answered",
                path,
                stat.S_IMODE(mode),
            )
    if patience.cancelled_caught:
        logger.warning("--kv-offloading-path %s has not answered for %.0f s", path, DISK_SECONDS)


def mode_of_directory(path: Path) -> int:
    """Made if it is missing. Blocks. Raises StartError for one that is not ours."""
    flag = f"--kv-offloading-path {path}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        other = stranger(os.listdir(path))
        mode = path.stat().st_mode
    except FileExistsError as error:
        raise StartError(f"{flag} is no directory") from error
    except OSError as error:
        raise StartError(f"{flag} cannot be used: {error.strerror}") from error
    if other is not None:
        raise StartError(f"{flag} has {other!r}, and nothing of a KV connector: give it a directory of its own")
    if not os.access(path, os.W_OK | os.X_OK):
        raise StartError(f"{flag} cannot be written to")
    return mode
