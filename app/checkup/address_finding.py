"""What it means for a server that somebody listens at its address already. Used by machine_findings; pure."""

from __future__ import annotations

import shlex

from app.api_client.place import ANY_ADDRESS, DEFAULT_HOST, DEFAULT_PORT
from app.checkup.address import Address
from app.checkup.finding import Finding, Mark
from app.checkup.listener import Listener
from app.own_command import own_command
from app.settings import Settings
from protocol.net_address import netloc


def address_finding(address: Address, settings: Settings, listener: Listener | None) -> Finding:
    """A warning where `listener` has it: the machine can serve, at another address or when that one has ended."""
    if settings.node_rank > 0:
        return Finding("address", Mark.OK, "none: this host keeps ranks for --master-addr, and takes no requests")
    if listener is not None:
        text = f"{address.name}: {listener.name} listens there"
        return Finding("address", Mark.WARN, text, _ways(address, settings, listener))
    if address.trouble:
        end = "end who listens there, or " if address.is_taken else ""
        return Finding(
            "address", Mark.FAIL, f"{address.name}: {address.trouble}", f"{end}use {_another(address, settings)}"
        )
    if settings.uds is None and settings.port == 0:
        return Finding("address", Mark.OK, f"{settings.host}, at a port that is free then")
    return Finding("address", Mark.OK, f"{address.name} is free")


def _ways(address: Address, settings: Settings, listener: Listener) -> str:
    if not listener.is_trillm:
        return f"end it, or use {_another(address, settings)}"
    command = f"{own_command('status')}{_whom(settings)}"
    return f"`{command}` asks it how it is; a second server needs {_another(address, settings)}"


def _another(address: Address, settings: Settings) -> str:
    if settings.uds is not None:
        return "another --uds"
    return f"--port {address.free_port or 'N'}" if address.is_taken else "another --host or --port"


def _whom(settings: Settings) -> str:
    """The flags by which a command asks a server with these settings."""
    if settings.uds is not None:
        return f" --uds {shlex.quote(str(settings.uds))}"
    host = ANY_ADDRESS.get(settings.host, settings.host)
    if settings.ssl_certfile is not None:
        return f" --base-url https://{netloc(host, settings.port)}"
    flags = "" if host == DEFAULT_HOST else f" --host {host}"
    return flags if settings.port == DEFAULT_PORT else f"{flags} --port {settings.port}"
