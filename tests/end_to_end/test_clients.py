"""The official client works unchanged, many clients are served together, and one that leaves costs nothing more."""

from __future__ import annotations

import json
import re
import signal
import socket

import openai
import pytest
import trio

from tests.helpers.server import Server, open_server

pytestmark = pytest.mark.process

SLOW = ("--dummy-step-seconds", "0.01")
LONG = {"prompt": "once", "max_tokens": 1500, "ignore_eos": True}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me of boats."}], "max_tokens": 12}


async def with_openai(server: Server, call) -> object:
    """Run a function of the official (blocking) client."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0, timeout=30)
    return await trio.to_thread.run_sync(call, client)


async def test_the_official_client_gets_the_same_text_plain_and_streamed(checkpoint):
    async with open_server(checkpoint, "--served-model-name", "tiny", "--api-key", "k") as server:

        def both(client: openai.OpenAI) -> tuple[str, str, int]:
            plain = client.chat.completions.create(**CHAT, temperature=0)
            stream = client.chat.completions.create(
                **CHAT, temperature=0, stream=True, stream_options={"include_usage": True}
            )
            chunks = list(stream)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert chunks[-1].usage.prompt_tokens == plain.usage.prompt_tokens
            assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
            assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
            return plain.choices[0].message.content, text, len(client.models.list().data)

        plain, streamed, models = await with_openai(server, both)
        assert plain == streamed != ""
        assert models == 1


async def test_the_official_client_sees_its_own_error_classes(checkpoint):
    async with open_server(checkpoint, "--served-model-name", "tiny", "--api-key", "k") as server:

        def errors(client: openai.OpenAI) -> None:
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(**CHAT, temperature=9)
            assert caught.value.param == "temperature"
            with pytest.raises(openai.NotFoundError):
                client.chat.completions.create(**CHAT | {"model": "other"})
            with pytest.raises(openai.AuthenticationError):
                client.with_options(api_key="wrong").models.list()

        await with_openai(server, errors)


async def test_many_clients_are_batched_and_each_gets_what_it_gets_alone(checkpoint):
    async with open_server(checkpoint, *SLOW) as server, server.client() as http:
        bodies = [{"prompt": f"once {i}", "max_tokens": 30, "ignore_eos": True, "temperature": 0} for i in range(20)]
        texts: dict[int, str] = {}

        async def ask(index: int) -> None:
            reply = await http.post("/v1/completions", json=bodies[index])
            texts[index] = reply.json()["choices"][0]["text"]

        for index in range(3):
            await ask(index)
        alone = dict(texts)
        before = await server.gauge("generation_tokens_total")
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for index in range(20):
                nursery.start_soon(ask, index)
        took = trio.current_time() - began

        assert {index: texts[index] for index in alone} == alone
        assert await server.gauge("generation_tokens_total") - before == 600
        assert took < 600 * 0.01, "they were served one after the other"


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("slots", ["64", "1"], ids=["running", "queued"])
async def test_a_client_that_leaves_is_aborted_within_a_second(checkpoint, stream, slots):
    async with open_server(checkpoint, *SLOW, "--max-num-seqs", slots) as server:
        body = {"prompt": "once", "max_tokens": 1900, "ignore_eos": True, "stream": stream}

        async def ask(scope: trio.CancelScope) -> None:
            async with server.client() as own:
                with scope:
                    await own.post("/v1/completions", json=body)

        scopes = [trio.CancelScope() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for scope in scopes:
                nursery.start_soon(ask, scope)
            while await server.num_requests() < 3:
                await trio.sleep(0.02)
            for scope in scopes:
                scope.cancel()
        with trio.fail_after(1):
            while await server.num_requests() > 0:
                await trio.sleep(0.02)
        assert await server.gauge("kv_cache_usage_perc") == 0


async def test_who_has_sent_half_a_body_does_not_hold_the_shutdown_up(checkpoint):
    async with open_server(checkpoint) as server:
        client = await trio.open_tcp_stream("127.0.0.1", int(server.url.rpartition(":")[2]))
        async with client:
            await client.send_all(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b'Content-Length: 100\r\n\r\n{"prompt": "on'
            )
            await server.until_ready()  # another request: by then this one's head has been read
            began = trio.current_time()
            server.signal(signal.SIGTERM)
            assert await server.wait() == 0
            assert trio.current_time() - began < 10
            assert b" 503 " in await client.receive_some()


async def test_a_second_signal_waits_for_nobody_who_does_not_read(checkpoint):
    async with open_server(checkpoint) as server:
        body = json.dumps(LONG | {"n": 4, "stream": True, "logprobs": 20}).encode()
        deaf = trio.socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await deaf.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        async with trio.SocketStream(deaf) as client:
            await client.send_all(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            assert (await client.receive_some(10)).startswith(b"HTTP/1.1 2")
            while await server.num_requests() > 0:  # then all of it, some 10 MB, waits for this client
                await trio.sleep(0.02)
            server.signal(signal.SIGTERM)
            await server.until_said(re.compile("draining"))
            began = trio.current_time()
            server.signal(signal.SIGTERM)
            assert await server.wait() == 0
            assert trio.current_time() - began < 15  # not the 30 s of --send-timeout
