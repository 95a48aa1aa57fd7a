"""Where the ranks of one engine find each other. Used by open; the engine's settings or torchrun say where it is."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import timedelta
from urllib.parse import urlsplit

import attrs
import torch.distributed as dist

from protocol.errors import StartError


@attrs.frozen
class Rendezvous:
    """A file on one host, or an address between several.

    Whoever can write that file or reach that address can disturb the engine: neither has a password. The file belongs
    into a directory of mode 0700, the address onto loopback or a network of these hosts' own.
    """

    path: str = ""
    """Of a file that does not exist yet; empty for an address."""
    host: str = ""
    port: int = 0
    name: str = ""
    """Apart from others at the same address: each start of the engine needs another file, or another name."""
    is_kept_by_agent: bool = False
    """Somebody else listens at the address: torchrun's agent. Else the first rank does."""

    @property
    def is_on_one_host(self) -> bool:
        return bool(self.path)

    @classmethod
    def parse(cls, text: str) -> Rendezvous:
        """Of file:///DIRECTORY/NAME or tcp://HOST:PORT/NAME. Raises StartError."""
        try:
            parts = urlsplit(text)
            host, port, path = parts.hostname, parts.port, parts.path
        except ValueError as error:
            raise StartError(f"the ranks' rendezvous {text!r} is no address: {error}") from None
        if parts.scheme == "file" and not host and path.startswith("/") and not path.endswith("/"):
            return cls(path=path)
        if parts.scheme == "tcp" and host and port:
            return cls(host=host, port=port, name=path.strip("/"))
        raise StartError(f"the ranks' rendezvous {text!r} is neither file:///DIRECTORY/NAME nor tcp://HOST:PORT/NAME")

    def open_store(self, rank: int, world: int, seconds: float) -> dist.Store:
        """Where the ranks leave notes for each other. Raises OSError where the first rank cannot listen, and torch's
        DistNetworkError or DistStoreError when the others do not find it in time."""
        timeout = timedelta(seconds=seconds)
        if self.path:
            store: dist.Store = dist.FileStore(self.path, world)
            store.set_timeout(timeout)
            return store
        if rank == 0 and not self.is_kept_by_agent:
            # torch itself would listen on every address of this host.
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            listening = socket.create_server((self.host, self.port), family=family)
            store = dist.TCPStore(
                self.host, self.port, world, True, timeout, False, master_listen_fd=listening.detach()
            )
        else:
            store = dist.TCPStore(self.host, self.port, world, False, timeout, False)
        return dist.PrefixStore(f"trillm {self.name}", store)


@attrs.frozen
class Place:
    """Of one rank, as whoever started it says."""

    rank: int
    world: int
    rendezvous: Rendezvous

    @classmethod
    def of_torchrun(cls, environ: Mapping[str, str]) -> Place | None:
        """By the variables that torchrun sets, or somebody in its stead; None where there is no RANK. Raises StartError
        naming the variable that is missing or does not fit."""
        if "RANK" not in environ:
            return None
        rank, world = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
        if not 0 <= rank < world:
            raise StartError(f"RANK is {rank}, and WORLD_SIZE {world}: it has to be below")
        port = _number(environ, "MASTER_PORT")
        if not 0 < port < 65536:
            raise StartError(f"MASTER_PORT is {port}, and has to be 1 to 65535")
        rendezvous = Rendezvous(
            host=_variable(environ, "MASTER_ADDR"),
            port=port,
            name=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
            is_kept_by_agent=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
        return cls(rank, world, rendezvous)


def _variable(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise StartError(f"RANK is set, and {name} is not: torchrun sets both")
    return environ[name]


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _variable(environ, name)
    if not text.isascii() or not text.isdigit():
        raise StartError(f"{name} is {text[:40]!r}, and has to be a whole number")
    return int(text)
