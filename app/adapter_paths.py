"""From a directory's path to an adapter: where adapters may lie, and which one it is. Reads files; called in a worker
thread by app/routes/lora.py, and by app/service.py at the start.

A client that may load adapters chooses a path on this machine. It learns of it no more than whether an adapter lies
there, and outside the operator's directories (--allowed-lora-dirs) not even that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from app.lora_modules import LoraModule
from protocol.errors import BadRequestError, CheckpointError, NotFoundError
from protocol.lora import LoraRequest
from protocol.lora_files import lora_id_of

MAX_PATH_LENGTH = 4096


@frozen
class AdapterPolicy:
    """What of adapters clients may do. Made once by app/settings.py."""

    is_enabled: bool = False
    """Whether there are any adapters at all."""
    allows_updates: bool = False
    """Whether clients may load and unload them."""
    max_loras: int = 0
    """Ready at once."""
    directories: tuple[Path, ...] = ()
    """Clients may load what lies below these; none: whatever the server can read."""

    def find(self, name: str, path: str) -> LoraRequest:
        """The adapter that a client wants. Raises BadRequestError, and NotFoundError for what it may not have, whether
        or not it is there."""
        if not path.startswith("/") or "\0" in path or len(path) > MAX_PATH_LENGTH:
            raise BadRequestError(
                f"lora_path must be an absolute path on the server of at most {MAX_PATH_LENGTH} characters; "
                "adapters are not fetched from the Hub",
                param="lora_path",
            )
        directory = _resolved(Path(path))
        if directory is None or not self._allows(directory) or not directory.is_dir():
            where = " in the directories that this server allows (--allowed-lora-dirs)" if self.directories else ""
            raise NotFoundError(f"No adapter found for '{name}': there is no such directory{where}", param="lora_path")
        try:
            return LoraRequest(name, lora_id_of(name, directory), str(directory))
        except BadRequestError as error:
            raise BadRequestError(
                f"The adapter '{name}' cannot be loaded: {error.message}", param="lora_path"
            ) from error

    def _allows(self, directory: Path) -> bool:
        return not self.directories or any(directory.is_relative_to(each) for each in self.directories)


def _resolved(path: Path) -> Path | None:
    """Without links: a link out of an allowed directory leads out of it."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a circle of links
        return None


def adapter_of_module(module: LoraModule) -> LoraRequest:
    """One that the operator has named. Raises CheckpointError in one sentence."""
    directory = _resolved(Path(module.path).expanduser())
    if directory is None or not directory.is_dir():
        raise CheckpointError(
            f"--lora-modules {module.name}: {module.path} is no directory (adapters are not fetched from the Hub)"
        )
    try:
        return LoraRequest(module.name, lora_id_of(module.name, directory), str(directory))
    except BadRequestError as error:
        raise CheckpointError(f"--lora-modules {module.name}: {directory}: {error.message}") from error


def resolved_directories(directories: Sequence[Path]) -> tuple[Path, ...]:
    """Raises BadRequestError for one that is none."""
    for directory in directories:
        if not directory.is_dir():
            raise BadRequestError(f"--allowed-lora-dirs: {directory} is no directory")
    return tuple(directory.resolve() for directory in directories)
