"""What is left of a command's process group is killed with us, however we end. Used by app/tools/command.py.

The kernel tells a process of its parent's death only if that process has asked (actors/parent_death.py), which a
command that is not ours does not, and its children would not hear of it. So a shell, of less than 2 MiB, waits beside
it for the end of a pipe that we alone hold.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import final

import trio
from attrs import frozen

SCRIPT = 'read -r group || exit; read -r _; kill -s KILL -- "-$group"'


@final
@frozen
class Leash:
    _stdin: trio.abc.SendStream

    async def hold(self, group: int) -> None:
        """From here on, while the leash is open, the end of this process is the group's. Its id must be that of a
        process that has not been waited for. Raises trio.BrokenResourceError if somebody has killed the shell."""
        await self._stdin.send_all(b"%d\n" % group)


@asynccontextmanager
async def open_leash() -> AsyncGenerator[Leash]:
    """Raises OSError where there is no /bin/sh."""
    shell = await trio.lowlevel.open_process(
        ["/bin/sh", "-c", SCRIPT, "trillm-leash"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        start_new_session=True,
    )
    assert shell.stdin is not None, "it has been given a pipe"
    try:
        yield Leash(shell.stdin)
    finally:
        with trio.CancelScope(shield=True):
            shell.kill()  # before the pipe ends: it kills nobody
            await shell.wait()
            await shell.stdin.aclose()
