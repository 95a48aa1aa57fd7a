"""All ranks map a connector's window, or none has it. Used by gpu/ranks/lead and gpu/ranks/follower."""

from __future__ import annotations

from gpu.kv_frames import KvFrames
from gpu.ranks.command_group import CommandGroup
from protocol.kv import KvWindow


def attach_together(window: KvWindow | None, rank: int, commands: CommandGroup) -> KvFrames | None:
    """This rank's frames. All ranks call it, each having let go of those before. Raises OSError with what a rank says
    that could not map the window."""
    frames, problem = None, None
    try:
        frames = None if window is None else KvFrames(window, rank)
    except OSError as error:
        problem = str(error)
    if (told := commands.agree(problem)) is not None:
        if frames is not None:
            frames.close()
        raise OSError(told)
    return frames
