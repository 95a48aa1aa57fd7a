"""--kv-transfer-config and --kv-offloading-…: vLLM's names to what connectors need. Read by app/settings.py."""

from __future__ import annotations

import ipaddress
import re
import secrets
from pathlib import Path
from typing import Literal

import msgspec

from app.shared_key import read_shared_key
from protocol.errors import BadRequestError
from protocol.ids import EngineIndex, Epoch
from protocol.kv import KV_TRANSPORTS
from protocol.net_address import is_name
from protocol.nixl_module import HOW_TO_INSTALL, nixl_module
from protocol.spec import KvSpec

GIBIBYTE = 2**30
DEFAULT_WINDOW_GIBIBYTES = 1.0
"""Of each engine, where only what it is for was asked for."""
DEFAULT_DISK_GIBIBYTES = 16.0
LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 14579
OURS = "TrillmConnector"
MAX_LEASE_SECONDS = 3600.0
MAX_PEERS = 1024
MAX_NAME_CHARACTERS = 256
"""Of an engine_id and of an address: tickets have both, and a bound of their own."""
MAX_GIBIBYTES = 2.0**20
PEER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):([0-9]{1,5})")


class ExtraConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What vLLM has no names for."""

    key_file: str | None = None
    """Of 32 bytes or more that all servers share."""
    allowed_peers: list[str] = []
    """host:port of servers whose tickets are taken as they are."""
    transports: list[str] = []
    """By name, the best first."""
    lease_seconds: float = 30.0


class KvTransferConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As vLLM names it."""

    kv_connector: str | None = None
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] = "kv_both"
    engine_id: str | None = None
    kv_ip: str | None = None
    """Where other servers reach the connectors of this one; None: LOOPBACK."""
    kv_port: int = DEFAULT_PORT
    """The first engine's; the others have those after it. 0: free ones."""
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"
    kv_connector_extra_config: ExtraConfig = ExtraConfig()

    @property
    def host(self) -> str:
        return self.kv_ip or LOOPBACK

    @property
    def names_address(self) -> bool:
        """Others are to know where this server is; 0 is a port that nobody knows."""
        return self.kv_ip is not None or self.kv_port not in (0, DEFAULT_PORT)


def read_kv_transfer_config(text: str | None) -> KvTransferConfig | None:
    """Raises BadRequestError for what is not JSON, not known, or out of range."""
    if text is None:
        return None
    try:
        config = msgspec.json.decode(text.encode(), type=KvTransferConfig)
    except msgspec.DecodeError as error:
        raise BadRequestError(f"--kv-transfer-config must be a JSON object of vLLM's kind: {error}") from error
    if config.kv_connector not in (None, OURS):
        raise BadRequestError(
            f"--kv-transfer-config: kv_connector {config.kv_connector!r} is not served, only {OURS!r}, "
            "which speaks with other servers of trillm"
        )
    if not 0 <= config.kv_port <= 65535:
        raise BadRequestError(f"--kv-transfer-config: kv_port must be from 0 to 65535, not {config.kv_port}")
    for name, value in {"kv_ip": config.kv_ip, "engine_id": config.engine_id}.items():
        if value is not None and not 1 <= len(value) <= MAX_NAME_CHARACTERS:
            raise BadRequestError(
                f"--kv-transfer-config: {name} has {len(value)} characters, and must have 1 to {MAX_NAME_CHARACTERS}"
            )
    _check_host(config.host)
    _check_extra(config.kv_connector_extra_config)
    return config


def _check_host(host: str) -> None:
    if not is_name(host):
        raise BadRequestError(f"--kv-transfer-config: kv_ip {host[:100]!r} is no host's name or address")
    try:
        names_all = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return  # a name
    if names_all:
        raise BadRequestError(
            f"--kv-transfer-config: kv_ip {host} is no address that other servers could reach this one at, and that is "
            "what it is told to them for"
        )


def _check_extra(extra: ExtraConfig) -> None:
    if not 1 <= extra.lease_seconds <= MAX_LEASE_SECONDS:
        raise BadRequestError(
            f"--kv-transfer-config: lease_seconds must be from 1 to {MAX_LEASE_SECONDS:.0f}, not {extra.lease_seconds}"
        )
    if len(extra.allowed_peers) > MAX_PEERS:
        raise BadRequestError(
            f"--kv-transfer-config: allowed_peers has {len(extra.allowed_peers)} entries, and {MAX_PEERS} is the limit"
        )
    if unknown := [name for name in extra.transports if name not in KV_TRANSPORTS]:
        raise BadRequestError(
            f"--kv-transfer-config: transports has {unknown[0]!r}, and there are only {', '.join(KV_TRANSPORTS)}"
        )
    if "nixl" in extra.transports and nixl_module() is None:
        raise BadRequestError(f"--kv-transfer-config: transports has 'nixl'. {HOW_TO_INSTALL}")
    for peer in extra.allowed_peers:
        match = PEER.fullmatch(peer)
        if match is None or not 1 <= int(match[2]) <= 65535:
            raise BadRequestError(f"--kv-transfer-config: allowed_peers has {peer[:100]!r}, which is not host:port")


def check_gibibytes(flag: str, value: float) -> None:
    """Raises BadRequestError for what is no size."""
    if not 0 <= value <= MAX_GIBIBYTES:
        raise BadRequestError(f"{flag} must be a number of GiB from 0 to {MAX_GIBIBYTES:.0f}, not {value}")


def kv_template(
    transfer: KvTransferConfig | None,
    num_engines: int,
    *,
    window_gibibytes: float,
    disk: Path | None,
    disk_gibibytes: float,
) -> KvSpec:
    """For the connectors of so many engines, which share memory and disk. 0 GiB are as many as they have by default.
    Raises BadRequestError for a key file that cannot be read."""
    config = transfer or KvTransferConfig()
    extra = config.kv_connector_extra_config
    key = secrets.token_bytes(32)
    if extra.key_file is not None:
        key = read_shared_key("--kv-transfer-config: key_file", Path(extra.key_file))
    window = window_gibibytes or DEFAULT_WINDOW_GIBIBYTES * num_engines
    return KvSpec(
        engine_index=EngineIndex(0),
        epoch=Epoch(0),
        inbox_address="",
        engine_id=config.engine_id or secrets.token_hex(16),
        key=key,
        window_bytes=int(window * GIBIBYTE),
        disk_path=None if disk is None else str(disk.absolute()),
        disk_bytes=int((disk_gibibytes or DEFAULT_DISK_GIBIBYTES) * GIBIBYTE),
        peer_host=None if transfer is None else config.host,
        peer_port=config.kv_port,
        allowed_peers=extra.allowed_peers,
        transports=extra.transports,
        lease_seconds=extra.lease_seconds,
    )
