"""Where the ranks of one engine find each other. Used by open; the engine's spec says where it is."""

from __future__ import annotations

import socket
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
    """Of a file that does not exist yet; empty for an address, at which the first rank listens."""
    host: str = ""
    port: int = 0
    name: str = ""
    """Apart from others at the same address: each start of the engine needs another file, or another name."""

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
        if rank == 0:
            # torch itself would listen on every address of this host.
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            listening = socket.create_server((self.host, self.port), family=family)
            store = dist.TCPStore(
                self.host, self.port, world, True, timeout, False, master_listen_fd=listening.detach()
            )
        else:
            store = dist.TCPStore(self.host, self.port, world, False, timeout, False)
        return dist.PrefixStore(f"trillm {self.name}", store)
