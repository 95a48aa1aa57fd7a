"""An engine whose links are tcp: its keys come over its control pipe, and strangers at its ports change nothing."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest
import trio

from actors.process import open_process
from protocol.codec import ENGINE_INPUT, ENGINE_OUTPUT, TO_CHILD
from protocol.curve import with_key
from protocol.ids import FIRST_CLIENT, EngineIndex, Epoch, RequestId
from protocol.links import make_curve_keys, open_links
from protocol.messages import VERSION, EngineCoreOutputs, EngineCoreRequest, Welcome
from protocol.sampling import SamplingParams
from protocol.spec import EngineSpec, Fault, LoadFormat, Ready, Start
from tests.helpers.ports import lasting_ports

pytestmark = pytest.mark.process


def an_engine(checkpoint: Path, **fields: object) -> EngineSpec:
    requests, outputs = (f"tcp://127.0.0.1:{port}" for port in lasting_ports(2))
    spec = EngineSpec(EngineIndex(0), Epoch(1), requests, {FIRST_CLIENT: outputs}, str(checkpoint), LoadFormat.DUMMY)
    return msgspec.structs.replace(spec, **fields)


async def heard(process, kind: type) -> object:
    while not isinstance(message := await process.receive(), kind):
        pass
    return message


def throw_at(endpoint: str, noise: bytes) -> socket.socket:
    host, _, port = endpoint.removeprefix("tcp://").partition(":")
    stranger = socket.create_connection((host, int(port)))
    stranger.sendall(noise)
    return stranger


async def test_an_engine_is_asked_and_answers_over_tcp_whatever_strangers_send(checkpoint: Path) -> None:
    ours = make_curve_keys()
    theirs = make_curve_keys([ours.public_key])
    spec = an_engine(checkpoint, curve=theirs)
    with open_links(ours) as links:
        async with open_process(spec, "engine-0") as process:
            await heard(process, Ready)
            for pid_file in ("cmdline", "environ"):
                shown = await trio.Path(f"/proc/{process.pid}/{pid_file}").read_bytes()
                assert theirs.secret_key not in shown
                assert theirs.secret_key.hex().encode() not in shown
            strangers = [
                throw_at(endpoint, noise)
                for endpoint in (spec.requests_address, spec.outputs_addresses[FIRST_CLIENT])
                for noise in (
                    b"\xff" * 300,
                    b"GET / HTTP/1.1\r\n\r\n",
                    b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(60),
                )
            ]
            inbox = links.subscribe(with_key(spec.outputs_addresses[FIRST_CLIENT], theirs.public_key), ENGINE_OUTPUT)
            outbox = links.push(with_key(spec.requests_address, theirs.public_key), ENGINE_INPUT)
            assert isinstance(await inbox.receive(), Welcome)
            params = SamplingParams(max_tokens=5, seed=1)
            outbox.send_nowait(EngineCoreRequest(spec.epoch, FIRST_CLIENT, RequestId("a"), [5, 6], params, 0.0))
            num_tokens = 0
            while num_tokens < 5:
                if isinstance(message := await inbox.receive(), EngineCoreOutputs):
                    num_tokens += sum(len(output.new_token_ids) for output in message.outputs)
            for stranger in strangers:
                stranger.close()


async def test_an_engine_without_keys_does_not_listen_on_tcp_and_says_why(checkpoint: Path) -> None:
    async with open_process(an_engine(checkpoint), "engine-0") as process:
        fault = await heard(process, Fault)

    assert "a tcp link needs keys" in fault.message


def test_keys_survive_the_control_pipe() -> None:
    keys = make_curve_keys([bytes(range(32))])
    sent = Start(VERSION, EngineSpec(EngineIndex(0), Epoch(1), "", {}, "", curve=keys))

    assert TO_CHILD.decode(TO_CHILD.encode(sent)) == sent
