"""Commands that ask a server, with a real one: what a person sees who types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from app.own_command import own_command
from tests.helpers.on_terminal import open_on_terminal
from tests.helpers.server import Server, open_server

pytestmark = pytest.mark.process

TRILLM = (sys.executable, "-m", "app.cli")


def environment_without_keys() -> dict[str, str]:
    """What would tell commands of another server, or its key, is empty."""
    return {name: "" for name in os.environ if name.endswith(("_API_KEY", "_BASE_URL"))}


async def run(
    server: Server, *words: str, stdin: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    with trio.fail_after(30):
        return await trio.run_process(
            [*TRILLM, *words, "--base-url", server.url],
            stdin=stdin,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=os.environ | environment_without_keys() | environment,
        )


async def test_a_server_with_a_key_is_asked_by_every_command(checkpoint: Path, tmp_path: Path) -> None:
    async with open_server(checkpoint, "--api-key", "secret") as server:
        key = {"TRILLM_API_KEY": "secret"}

        refused = await run(server, "chat", "hello")
        assert (refused.returncode, refused.stdout) == (1, b"")
        assert refused.stderr.decode() == (
            f"trillm: {server.url} asks for a key: "
            "set VLLM_API_KEY, as for the server (or TRILLM_API_KEY, OPENAI_API_KEY, --api-key)\n"
        )

        answered = await run(server, "chat", "hello", "--max-tokens", "8", "--stats", stdin=b"and this", **key)
        assert answered.returncode == 0
        assert len(answered.stdout) > 1
        assert answered.stdout.count(b"\x1b") == 0
        assert b"trillm: cut off: " in answered.stderr
        assert b"8 tokens" in answered.stderr

        told = json.loads((await run(server, "status", "--json", **key)).stdout)
        assert (told["object"], told["ready"]) == ("house", True)
        assert "engine-0" in {actor["name"] for actor in told["actors"]}

        flags = ("--num-prompts", "8", "--input-len", "20", "--output-len", "4", "--ignore-eos", "--save-result")
        loaded = await run(server, "bench", *flags, "--result-dir", str(tmp_path), **key)
        assert loaded.returncode == 0, loaded.stderr
        assert "Successful requests:                     8\n" in loaded.stdout.decode()
        (name,) = os.listdir(tmp_path)
        saved = json.loads(await trio.Path(tmp_path, name).read_bytes())
        assert (saved["total_input_tokens"], saved["total_output_tokens"]) == (160, 32)

    gone = await run(server, "status", **key)
    assert gone.returncode == 3
    assert gone.stderr.decode().startswith(f"trillm: nothing listens at {server.url}: start `{own_command('serve')}`")


async def test_ctrl_c_ends_an_answer_and_the_conversation_goes_on(checkpoint: Path, tmp_path: Path) -> None:
    asked = {**environment_without_keys(), "XDG_STATE_HOME": str(tmp_path)}
    async with open_server(checkpoint, "--dummy-step-seconds", "0.5") as server:
        words = (*TRILLM, "chat", "--base-url", server.url, "--seed", "1", "--max-tokens", "1000")
        async with open_on_terminal(*words, **asked) as terminal:
            with trio.fail_after(30):
                await terminal.until("/help lists commands")
                os.write(terminal.screen, b"hello\n")
                while not await server.num_requests():
                    await trio.sleep(0.02)
                terminal.press_ctrl_c()
                await terminal.until("Ctrl-C once more leaves")
                while await server.num_requests():
                    await trio.sleep(0.02)
                os.write(terminal.screen, b"/set max_tokens 1\n/regenerate\n")
                await terminal.until("1 token,")
                os.write(terminal.screen, b"/quit\n")
                assert await terminal.wait() == 0
    assert (tmp_path / "trillm" / "chat_history").read_text() == "hello\n/set max_tokens 1\n/regenerate\n/quit\n"


async def test_watching_stops_at_ctrl_c_and_leaves_the_terminal_as_it_was(checkpoint: Path) -> None:
    async with open_server(checkpoint) as server:
        words = (*TRILLM, "status", "--watch", "--interval", "0.1", "--base-url", server.url)
        async with open_on_terminal(*words, **environment_without_keys()) as terminal:
            with trio.fail_after(30):
                await terminal.until("tokens/s ")
                terminal.press_ctrl_c()
                assert await terminal.wait() == 0
    assert terminal.has_cursor
    assert sum("engine-0" in line for line in terminal.lines()) == 1
