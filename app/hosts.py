"""--nnodes: what the actors need to know of the other hosts, from settings, files and torchrun's environment.

Used by app/settings.py for the host that leads, and by app/headless.py on the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from actors.handles import FollowingSpec, HostsSpec
from app.shared_key import read_shared_key
from protocol.errors import BadRequestError, CheckpointError

if TYPE_CHECKING:
    from app.settings import Settings

LEADING = "host 0"
FOLLOWING = "another host"


def leading_host(settings: Settings, checkpoint: Path) -> HostsSpec | None:
    """None: there is one host. Raises BadRequestError and CheckpointError for files that cannot be used."""
    if settings.nnodes == 1:
        return None
    from protocol.links import derive_curve_keys  # loads zmq, which no command needs that only reads settings

    return HostsSpec(
        num_hosts=settings.nnodes,
        host=settings.master_addr,
        port=settings.master_port,
        curve=derive_curve_keys(_key(settings), LEADING, [FOLLOWING]),
        model=digest_of(checkpoint),
    )


def following_host(settings: Settings, checkpoint: Path) -> FollowingSpec:
    """Raises as `leading_host`."""
    from protocol.links import derive_curve_keys

    key = _key(settings)
    return FollowingSpec(
        number=settings.node_rank,
        num_hosts=settings.nnodes,
        host=settings.master_addr,
        port=settings.master_port,
        leading_key=derive_curve_keys(key, LEADING).public_key,
        curve=derive_curve_keys(key, FOLLOWING, [LEADING]),
        model=digest_of(checkpoint),
        checkpoint=str(checkpoint),
        cache_directory=str(settings.cache_directory),
        threads=settings.threads,
    )


def _key(settings: Settings) -> bytes:
    assert settings.node_key_file is not None, "app/settings.py asks for it"
    return read_shared_key("--node-key-file", settings.node_key_file)


def digest_of(checkpoint: Path) -> str:
    """Of what says how the model is made: ranks that disagree about it would compute nonsense."""
    try:
        return hashlib.sha256((checkpoint / "config.json").read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{checkpoint}/config.json cannot be read: {error.strerror}") from error


@attrs.frozen
class Torchrun:
    """What torchrun says of the hosts, of which it has started this process on one."""

    nnodes: int
    node_rank: int
    master_addr: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Torchrun | None:
        """None if it has not started us. Raises BadRequestError."""
        if "TORCHELASTIC_RUN_ID" not in environ:
            return None
        if (here := environ.get("LOCAL_WORLD_SIZE")) != "1":
            raise BadRequestError(
                f"torchrun has started {here or 'no'} processes on this host: give it --nproc-per-node 1, "
                "since a host's server starts the ranks of that host"
            )
        try:
            return cls(int(environ["WORLD_SIZE"]), int(environ["RANK"]), environ["MASTER_ADDR"])
        except (KeyError, ValueError) as error:
            raise BadRequestError(f"torchrun's environment cannot be read: {error!r}") from error
