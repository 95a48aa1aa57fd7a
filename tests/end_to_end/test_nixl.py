"""Prompts go from engine to engine by NIXL, if it is installed, over what UCX has on any machine: TCP."""

from __future__ import annotations

import os
import signal

import pytest
import trio

from protocol.nixl_module import nixl_module
from tests.end_to_end.test_prefill_decode import BODIES, open_divided, transfer
from tests.helpers.answers_read import answers, comparable
from tests.helpers.kv_servers import is_at_rest, until_told
from tests.helpers.processes import child_processes, wait_until_gone
from tests.helpers.server import Server, open_server

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(nixl_module() is None, reason="NIXL is not installed"),
]

SOME = BODIES[:5]
MORE = BODIES[5:10]
BY_NIXL = 'trillm:kv_transfers_total{engine="1",transport="nixl:tcp"}'


def nixl_of(server: Server, connector: str) -> int:
    (process,) = child_processes(server.children()[connector])
    return process


async def test_prompts_go_by_nixl_and_when_its_process_is_killed_answers_are_the_same(checkpoint, monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp")
    async with open_server(checkpoint) as server, answers(server, SOME + MORE) as told:
        pass
    expected = comparable(told)

    async with open_divided(checkpoint, *transfer(transports=["nixl"])) as server:
        async with answers(server, SOME) as told:
            pass
        assert comparable(told) == expected[: len(SOME)]
        await until_told(server, lambda now: is_at_rest(now, 2) and now.get(BY_NIXL, 0) > 0)
        processes = [nixl_of(server, name) for name in ("kv-0", "kv-1")]
        async with answers(server, MORE) as told:
            os.kill(processes[0], signal.SIGKILL)
        assert comparable(told) == expected[len(SOME) :]
        await until_told(server, lambda now: is_at_rest(now, 2))
        assert any("NIXL's process has ended" in line for line in server.log)
        last = nixl_of(server, "kv-1")
    with trio.fail_after(5):
        await wait_until_gone(*processes, last)
