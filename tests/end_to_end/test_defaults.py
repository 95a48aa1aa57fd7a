"""What an operator decides for requests that do not: template, defaults, limits, seeds, the shape of streams."""

from __future__ import annotations

import sys

import pytest

from tests.helpers.server import open_process, open_server

pytestmark = pytest.mark.process

FLAGS = (
    "--chat-template", "{% for m in messages %}<{{ m.content }}>{% endfor %}",
    "--generation-config", "vllm",
    "--override-generation-config", '{"max_new_tokens": 9, "temperature": 1.5}',
    "--return-tokens-as-token-ids",
    "--stream-interval", "4",
    "--trust-request-chat-template",
    "--seed", "7",
)  # fmt: skip
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True, "max_tokens": 500}


async def test_a_server_does_as_its_flags_say_and_again_after_a_restart(checkpoint):
    told: list[list[str]] = []
    for _ in range(2):
        async with open_server(checkpoint, *FLAGS) as server, server.client() as http:
            path = "/v1/chat/completions"
            first = (await http.post(path, json=CHAT | {"return_prompt_text": True, "logprobs": True})).json()
            assert first["prompt_text"] == "<Hi>"
            assert first["usage"]["completion_tokens"] == 9
            assert all(entry["token"].startswith("token_id:") for entry in first["choices"][0]["logprobs"]["content"])
            own = await http.post(path, json=CHAT | {"return_prompt_text": True, "chat_template": "own"})
            assert own.json()["prompt_text"] == "own"
            stream = (await http.post(path, json=CHAT | {"stream": True})).text
            assert stream.count('"content":"') <= 4, "the role, the first token, and then four at a time at least"
            texts = [(await http.post(path, json=CHAT)).json()["choices"][0]["message"]["content"] for _ in range(2)]
            told.append([first["choices"][0]["message"]["content"], *texts])
    assert told[0] == told[1]
    assert len(set(told[0])) == 3


@pytest.mark.parametrize(
    ("flag", "value", "status", "said"),
    [
        ("--chat-template", "/nowhere.jinja", 1, "neither a template nor a file"),
        ("--chat-template", "{% for %}", 1, "no valid Jinja"),
        ("--generation-config", "/nowhere", 1, "generation_config.json"),
        ("--override-generation-config", '{"temperature": 9}', 2, "temperature must be between"),
    ],
)
async def test_a_default_that_cannot_be_meant_ends_the_start_in_a_sentence(checkpoint, flag, value, status, said):
    command = [sys.executable, "-m", "app.cli", "serve", str(checkpoint), "--load-format", "dummy", "--port", "0"]
    async with open_process([*command, flag, value]) as server:
        assert await server.wait() == status
        await server.until_silent()
    assert said in server.log[-1]
    assert "Traceback" not in "\n".join(server.log)
