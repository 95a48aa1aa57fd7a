"""The console's playground in a real browser: it talks over the API, and says in words what happens to the server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.helpers.server import open_server
from tests.helpers.threaded_server import ThreadedServer, in_thread

pytest.importorskip("playwright", reason="playwright, which drives the browser, is missing")

from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.helpers.browser import open_page, screenshot

pytestmark = pytest.mark.process

SLOW = ("--dummy-step-seconds", "0.02")
KEY = "a-key-that-nobody-tells"
REFUSED = "Failed to load resource"
"""What Chromium writes of any answer that is no 200."""


@pytest.fixture(scope="module")
def served(checkpoint) -> Iterator[ThreadedServer]:
    with in_thread(open_server(checkpoint)) as opened:
        yield opened


@pytest.fixture(scope="module")
def slow(checkpoint) -> Iterator[ThreadedServer]:
    with in_thread(open_server(checkpoint, *SLOW)) as opened:
        yield opened


def chat(served: ThreadedServer) -> str:
    return f"{served.url}/#chat"


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer")


def until_answered(page: Page, count: int = 1) -> Locator:
    """The last of so many answers, which has ended."""
    expect(page.get_by_role("button", name="Answer again")).to_have_count(count)
    return answers(page).last


def text_of(answer: Locator) -> str:
    """Of the model, as it came."""
    return answer.page.evaluate(
        "JSON.parse(localStorage[`trillm.chat ${location.pathname}`]).messages.at(-1).parts[0].text"
    )


QUESTION = "Once upon a time"


@pytest.fixture(scope="module")
def seed(served) -> str:
    """With which the answer to the question has at least 100 tokens: those of a dummy end by chance."""
    for seed in range(100):
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 100, "seed": seed}
        reply = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=30).json()
        if reply["choices"][0]["finish_reason"] == "length":
            return str(seed)
    raise AssertionError("no seed gives 100 tokens")


def choose(page: Page, group: str, **numbers: str) -> None:
    """Open a group of the settings, and fill in fields by their ids."""
    details = page.locator("details", has=page.get_by_text(group, exact=True)).last
    if details.get_attribute("open") is None:
        page.get_by_text(group, exact=True).click()
    for name, value in numbers.items():
        page.locator(f"#choice-{name}").fill(value)


def test_an_answer_comes_with_its_figures_and_is_there_again_after_a_reload(browser: Browser, served: ThreadedServer):
    with open_page(browser, chat(served)) as page:
        choose(page, "Sampling", max_tokens="20", seed="1")
        say(page, "Hello there")
        answer = until_answered(page)
        expect(answer).to_contain_text("20 tokens out")
        expect(answer).to_contain_text("cut at the limit of tokens")
        first = text_of(answer)
        assert first

        page.reload()
        expect(page.locator("#choice-max_tokens")).to_have_value("20")
        expect(page.get_by_role("article", name="You")).to_contain_text("Hello there")
        assert text_of(until_answered(page)) == first

        page.get_by_role("button", name="Answer again").click()  # with the same seed
        assert text_of(until_answered(page)) == first
        expect(answers(page)).to_have_count(1)

        page.get_by_role("button", name="Edit").click()
        page.get_by_label("The question, otherwise").fill("Goodbye")
        page.keyboard.press("Enter")
        assert text_of(until_answered(page)) != first
        expect(page.get_by_role("article", name="You")).to_have_text(re.compile("Goodbye"))

        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Clear").click()
        expect(answers(page)).to_have_count(0)
        expect(page.get_by_role("heading", name="Talk to the model")).to_be_visible()


def test_escape_stops_an_answer_and_the_server_s_work_for_it(browser: Browser, slow: ThreadedServer, seed: str):
    with open_page(browser, chat(slow)) as page:
        choose(page, "Sampling", seed=seed)
        say(page, QUESTION)
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        expect(answers(page).locator(".text")).not_to_be_empty()
        assert slow.num_requests() == 1
        page.keyboard.press("Escape")
        expect(until_answered(page)).to_contain_text("stopped")
        expect(page.get_by_label("Message", exact=True)).to_be_focused()
        slow.until_idle()


def test_an_answer_goes_on_after_its_engine_was_killed_and_is_what_it_would_have_been(
    browser: Browser, slow: ThreadedServer, seed: str
):
    with open_page(browser, chat(slow)) as page:
        choose(page, "Sampling", max_tokens="60", seed=seed)
        say(page, QUESTION)
        undisturbed = text_of(until_answered(page))

        page.get_by_role("button", name="Answer again").click()
        expect(answers(page).locator(".text")).not_to_be_empty()
        slow.kill("engine-0")
        answer = until_answered(page)
        expect(answer).to_contain_text("60 tokens out")
        expect(answer).to_contain_text("tokens/s")
        assert text_of(answer) == undisturbed


def test_the_arrow_keys_show_what_might_have_stood_in_a_token_s_place(browser: Browser, served: ThreadedServer):
    with open_page(browser, chat(served)) as page:
        choose(page, "Sampling", max_tokens="12", seed="3")
        choose(page, "Form of the answer")
        page.get_by_label("Show how likely each token was").check()
        say(page, "Hello")
        answer = until_answered(page)
        tokens = answer.get_by_role("group", name="The answer by tokens").get_by_role("button")
        assert 2 < tokens.count() <= 12

        tokens.first.focus()
        tip = page.get_by_role("tooltip")
        expect(tip).to_be_visible()
        page.keyboard.press("ArrowRight")
        expect(tokens.nth(1)).to_be_focused()
        expect(tokens.nth(1)).to_have_attribute("aria-describedby", tip.get_attribute("id"))
        expect(tip.get_by_role("listitem").first).to_contain_text(re.compile(r"\d %"))
        assert tip.get_by_role("listitem").count() >= 5
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()
        tokens.nth(2).hover()
        expect(tip).to_be_visible()
        screenshot(page, "tokens")

        answer.get_by_role("button", name="Show as text").click()
        expect(tokens).to_have_count(0)
        expect(answer.locator(".markdown")).to_be_visible()


def test_an_answer_keeps_to_a_schema_and_a_wrong_schema_is_not_sent(browser: Browser, served: ThreadedServer):
    with open_page(browser, chat(served)) as page:
        choose(page, "Form of the answer")
        page.get_by_label("Answers are").select_option("JSON of a schema")
        page.get_by_label("JSON schema").fill('{"type": ')
        say(page, "Which boat?")
        expect(page.get_by_text("The schema must be JSON").first).to_be_visible()
        expect(answers(page)).to_have_count(0)

        schema = {"type": "object", "properties": {"boat": {"enum": ["gull", "tern"]}}, "required": ["boat"]}
        page.get_by_label("JSON schema").fill(json.dumps(schema | {"additionalProperties": False}))
        say(page, "Which boat?")
        assert json.loads(text_of(until_answered(page)))["boat"] in ("gull", "tern")


TOOL = {
    "name": "look_up",
    "parameters": {
        "type": "object",
        "properties": {"boat": {"enum": ["gull", "tern"]}},
        "required": ["boat"],
        "additionalProperties": False,
    },
}


def test_a_call_is_answered_by_hand_and_the_model_goes_on(browser: Browser, served: ThreadedServer):
    with open_page(browser, chat(served)) as page:
        choose(page, "Sampling", max_tokens="60", seed="1")
        choose(page, "Tools")
        page.get_by_label("Functions, whose results you type").check()
        page.get_by_label("Functions, as JSON").fill(json.dumps([TOOL | {"name": ""}]))
        expect(page.get_by_text("Tool 1 has no name.")).to_be_visible()
        page.get_by_label("Functions, as JSON").fill(json.dumps([TOOL | {"strict": True}]))
        page.get_by_label("Calls are").select_option("required")
        say(page, "Where is the boat?")
        until_answered(page)
        calls = answers(page).first.locator(".call")
        expect(calls.first).to_contain_text(re.compile(r'"boat": "(gull|tern)"'))

        result = page.get_by_label("Result of look_up").first
        expect(result).to_be_focused()
        say(page, "Another question")
        expect(page.get_by_text("First give what look_up")).to_be_visible()
        for _ in range(calls.count()):
            page.get_by_label("Result of look_up").first.fill('{"harbour": "north"}')
            page.get_by_role("button", name="Send result").first.click()
        assert text_of(until_answered(page, 2))
        expect(calls.first).to_contain_text("north")
        page.reload()
        expect(answers(page).first).to_contain_text("north")


def test_what_the_server_refuses_is_told_in_its_words_and_can_be_tried_again(browser: Browser, served: ThreadedServer):
    with open_page(browser, chat(served), expected=REFUSED) as page:
        choose(page, "Sampling", max_tokens="100000")
        say(page, "Hello")
        expect(answers(page).get_by_role("alert")).to_contain_text("max_tokens")
        page.locator("#choice-max_tokens").fill("5")
        page.get_by_role("button", name="Retry").click()
        expect(until_answered(page)).to_contain_text("5 tokens out")
        expect(answers(page)).to_have_count(1)

        page.locator("#choice-temperature").fill("3")
        expect(page.get_by_text("Temperature must be from 0 to 2.")).to_be_visible()
        page.get_by_role("button", name="Reset to the server’s defaults").click()
        expect(page.locator("#choice-temperature")).to_have_value("")


def test_a_server_that_asks_for_patience_gets_it(browser: Browser, served: ThreadedServer):
    asked = []

    def refuse_once(route: Route) -> None:
        asked.append(route.request)
        if len(asked) > 1:
            return route.continue_()
        error = {"error": {"message": "The queue is full.", "type": "overloaded", "param": None, "code": None}}
        route.fulfill(status=503, headers={"Retry-After": "1"}, json=error)

    with open_page(browser, chat(served), expected=REFUSED) as page:
        page.route("**/v1/chat/completions", refuse_once)
        choose(page, "Sampling", max_tokens="5")
        say(page, "Hello")
        expect(page.get_by_text("The queue is full. Trying again in 1 s.")).to_be_visible()
        expect(until_answered(page)).to_contain_text("5 tokens out")
        assert len(asked) == 2


def test_a_stream_that_breaks_or_ends_in_an_error_is_no_whole_answer(browser: Browser, served: ThreadedServer):
    chunk = 'data: {"choices":[{"index":0,"delta":{"content":"half "},"finish_reason":null}]}\n\n'
    failed = 'data: {"error":{"message":"The engine has given up."}}\n\ndata: [DONE]\n\n'
    with open_page(browser, chat(served)) as page:
        ends = ["", failed]
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body=chunk + ends.pop(0)))
        for count, told in enumerate(["broke before", "The engine has given up."], 1):
            say(page, "Hello")
            expect(page.get_by_role("button", name="Retry")).to_have_count(count)
            answer = answers(page).last
            expect(answer.get_by_role("alert")).to_contain_text(told)
            expect(answer.locator(".text")).to_have_text("half")


def test_thoughts_stand_apart_from_the_answer(browser: Browser, served: ThreadedServer):
    deltas = [{"reasoning": "Let me "}, {"reasoning": "think"}, {"content": "Done <b>"}, {"content": "now</b>"}]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    with open_page(browser, chat(served)) as page:
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
        say(page, "Hello")
        answer = until_answered(page)
        expect(answer.locator(".text")).to_have_text("Done <b>now</b>")
        expect(answer.get_by_text("Let me think")).to_be_hidden()
        answer.get_by_text("Thoughts").click()
        expect(answer.get_by_text("Let me think")).to_be_visible()


def test_events_are_read_wherever_they_are_cut(browser: Browser, served: ThreadedServer):
    stream = '\ufeffdata: {"a": "Grüße, 船 🚢"}\n\n: keep-alive\r\n\r\nevent: x\rdata: {"a":\rdata: 2}\r\r'
    stream += "data: [DONE]\n\ndata: 3\n\n"
    script = """async ([path, bytes, size]) => {
        const { events } = await import(path);
        const cut = (at) => new Uint8Array(bytes.slice(at, at + size));
        const body = new ReadableStream({ start(controller) {
            for (let at = 0; at < bytes.length; at += size) controller.enqueue(cut(at));
            controller.close();
        }});
        const found = [];
        for await (const event of events(body, true)) found.push(event);
        return found;
    }"""
    with open_page(browser, f"{served.url}/version", expected="favicon") as page:
        for size in (1, 2, 3, 7, 1000):
            found = page.evaluate(script, [f"{served.url}/console/chat_sse.js", list(stream.encode()), size])
            assert found == [{"a": "Grüße, 船 🚢"}, {"a": 2}], size


MARKDOWN = """# Title **x**
Text *it* and `code <b>` and __bold__ snake_case_name
second line
- a
- b
  - nested

  more of b
1. one
2) two
> quote
> - x

```python
def f():

    return "``"
```
| a | b |
|---|:-:|
| 1 | `2` |

[good](https://example.org/) [bad](javascript:alert(1)) [worse](data:text/html,x) <img src=x onerror=alert(1)>
<script>alert(1)</script> **not closed
~~~
open"""


def test_markdown_is_the_same_however_it_comes_and_never_becomes_html(browser: Browser, served: ThreadedServer):
    script = """async ([path, text, size]) => {
        const { Markdown } = await import(path);
        const root = document.createElement("div");
        const markdown = new Markdown(root);
        for (let at = 0; at < text.length; at += size) markdown.append(text.slice(at, at + size));
        markdown.end();
        return root.innerHTML;
    }"""
    with open_page(browser, f"{served.url}/version", expected="favicon") as page:
        module = f"{served.url}/console/chat_markdown.js"
        whole = page.evaluate(script, [module, MARKDOWN, 10_000])
        for size in (1, 2, 3, 5, 11, 40):
            assert page.evaluate(script, [module, MARKDOWN, size]) == whole, size
    for element in ("<h3>Title <strong>x", "<em>it</em>", "<code>code &lt;b&gt;</code>", "<strong>bold", "<table>"):
        assert element in whole
    assert re.search(r"<ol start=.1.><li>one</li><li>two</li></ol>", whole)
    assert 'def f():\n\n    return "``"</code>' in whole
    assert whole.count("<a ") == 1
    assert "&lt;img src=x onerror" in whole
    assert "<script" not in whole
    assert "<img" not in whole


def run(command: list[str], script: str) -> str:
    environment = os.environ | {"OPENAI_API_KEY": KEY}
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told_by_curl(output: str) -> str:
    events = [json.loads(line[6:]) for line in output.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])


def test_the_request_as_curl_and_as_python_runs_and_gives_the_same_answer(browser: Browser, served: ThreadedServer):
    with open_page(browser, chat(served), permissions=("clipboard-read", "clipboard-write")) as page:
        page.locator("#choice-system").fill('It\'s a "test" of $HOME, `x` and \\ too:\nлодки')
        choose(
            page, "Sampling", max_tokens="10", seed="1", temperature="0.9", top_k="40", min_p="0.02", stop="\\nfoo'\n€"
        )
        choose(page, "Form of the answer")
        page.get_by_label("Show how likely each token was").check()
        choose(page, "Tools")
        page.get_by_label("Functions, whose results you type").check()
        page.get_by_label("Calls are").select_option("not made")
        say(page, "It's \"you\", isn't it?\nJSON\n")
        expected = text_of(until_answered(page))

        page.get_by_role("button", name="As code").click()
        dialog = page.get_by_role("dialog")
        for kind, command, read in (
            ("curl", ["sh", "-s"], told_by_curl),
            ("Python", [sys.executable, "-"], lambda output: output.removesuffix("\n")),
        ):
            dialog.get_by_label(kind).check()
            dialog.get_by_role("button", name="Copy").click()
            expect(dialog.get_by_role("button", name="Copy")).to_have_text("Copied")
            script = page.evaluate("navigator.clipboard.readText()")
            assert "OPENAI_API_KEY" in script
            assert read(run(command, script)) == expected
        screenshot(page, "as-code")
        dialog.get_by_role("button", name="Close").click()
        expect(dialog).to_be_hidden()


def import_file(page: Page, content: bytes) -> None:
    file = {"name": "conversation.json", "mimeType": "application/json", "buffer": content}
    page.locator("input[type=file]").set_input_files(file)


def test_a_conversation_goes_to_a_file_and_comes_back(browser: Browser, served: ThreadedServer):
    with open_page(browser, chat(served)) as page:
        choose(page, "Sampling", max_tokens="8", seed="4")
        say(page, "Hello")
        text = text_of(until_answered(page))
        with page.expect_download() as download:
            page.get_by_role("button", name="Export").click()
        exported = Path(download.value.path()).read_bytes()
    with open_page(browser, chat(served)) as page:
        import_file(page, exported)
        assert text_of(until_answered(page)) == text
        expect(page.locator("#choice-seed")).to_have_value("4")

        others = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Whose?"}]
        import_file(page, json.dumps({"messages": others}).encode())
        expect(page.get_by_role("article")).to_have_text(re.compile("Whose"))
        expect(page.locator("#choice-system")).to_have_value("Be brief.")
        import_file(page, b'{"messages": [{"role": "pirate"}]}')
        expect(page.get_by_text("conversation.json cannot be read: messages[0]")).to_be_visible()


MCP_SERVER = """
from typing import Literal
from mcp.server.mcpserver import MCPServer
server = MCPServer("signals", log_level="CRITICAL")
@server.tool()
async def hoist(flag: Literal["red", "blue"]) -> str:
    return f"The {flag} flag flies."
server.run("stdio")
"""


def seed_of_one_call(served: ThreadedServer, question: str) -> str:
    """With which a dummy calls hoist once, and not several times."""
    tools = [{"type": "mcp", "server_label": "signals", "require_approval": "always"}]
    body = {"input": [{"role": "user", "content": question}], "tools": tools, "tool_choice": "required"}
    for seed in range(50):
        asked = body | {"seed": seed, "store": False, "max_output_tokens": 120}
        headers = {"Authorization": f"Bearer {KEY}"}
        reply = httpx.post(f"{served.url}/v1/responses", json=asked, headers=headers, timeout=30).json()
        if [item["type"] for item in reply["output"]] == ["mcp_list_tools", "mcp_approval_request"]:
            return str(seed)
    raise AssertionError("no seed gives one call")


def test_an_mcp_server_s_call_is_allowed_by_hand_and_shown_with_its_result(browser: Browser, checkpoint, tmp_path):
    script = tmp_path / "signals.py"
    script.write_text(MCP_SERVER)
    command = f"signals=stdio:{sys.executable} {script}"
    with (
        in_thread(open_server(checkpoint, "--tool-server", command, VLLM_API_KEY=KEY)) as served,
        open_page(browser, chat(served), expected=REFUSED) as page,
    ):
        page.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        choose(page, "Sampling", max_tokens="120", seed=seed_of_one_call(served, "Hoist it"))
        choose(page, "Tools")
        page.get_by_label("signals").check()
        page.get_by_label("Calls are").select_option("required")
        say(page, "Hoist it")
        until_answered(page)
        first = answers(page).first
        expect(first).to_contain_text("signals has 1 tool")
        allow = first.get_by_role("button", name="Allow signals.hoist")
        expect(allow).to_be_focused()
        page.keyboard.press("Enter")
        second = until_answered(page, 2)
        expect(first).to_contain_text("You have allowed it.")
        second.get_by_text("signals.hoist").click()
        expect(second).to_contain_text(re.compile("The (red|blue) flag flies"))

        page.get_by_role("button", name="As code").click()
        curl = page.get_by_role("dialog").locator("code").text_content()
        assert "/v1/responses" in curl
        assert KEY not in curl + page.evaluate("JSON.stringify(localStorage)")
        assert '"type":"response.' in run(["sh", "-s"], curl)


def test_each_control_has_a_name_and_fits_a_narrow_window_in_both_themes(browser: Browser, served: ThreadedServer):
    for dark in (False, True):
        with open_page(browser, chat(served), width=400, height=800, dark=dark) as page:
            page.get_by_text("Settings", exact=True).click()
            choose(page, "Sampling", max_tokens="8")
            choose(page, "Form of the answer")
            page.get_by_label("Show how likely each token was").check()
            choose(page, "Tools")
            page.get_by_label("Functions, whose results you type").check()
            say(page, "Hello")
            until_answered(page)
            assert page.evaluate(UNNAMED) == []
            assert page.evaluate(FAINT) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            screenshot(page, f"narrow-{'dark' if dark else 'light'}")


UNNAMED = """[...document.querySelectorAll("#chat :is(button, input, select, textarea, summary)")]
    .filter((each) => each.checkVisibility() && each.type !== "hidden")
    .filter((each) => !(each.ariaLabel || each.labels?.length || each.textContent.trim()))
    .map((each) => each.outerHTML.slice(0, 200))"""
"""Controls that a screen reader has no name for."""

FAINT = """(() => {
    const parts = (colour) => {
        const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => [r, g, b].map((x) => x / 255)
        .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
        .reduce((sum, x, at) => sum + x * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (each) => {
        for (; each; each = each.parentElement) {
            const found = parts(getComputedStyle(each).backgroundColor);
            if (found[3] === 255) return found;
        }
        return [255, 255, 255, 255];
    };
    const found = new Set();
    for (const each of document.querySelectorAll("#chat *")) {
        const hasText = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        if (!hasText || !each.checkVisibility()) continue;
        const [a, b] = [light(parts(getComputedStyle(each).color)), light(behind(each))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) found.add(`${each.tagName}.${each.className}: ${contrast.toFixed(2)}`);
    }
    return [...found];
})()"""
"""Texts whose contrast is below 4.5, which is what WCAG's AA asks for."""


def test_a_long_answer_costs_no_more_at_its_end_than_at_its_beginning(browser: Browser, served: ThreadedServer):
    word = 'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
    pieces = [word % ("wort " if at % 50 else ".\\n\\n") for at in range(10_000)]
    end = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    with open_page(browser, chat(served)) as page:
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body="".join([*pieces, end])))
        page.evaluate(
            """() => {
                window.made = 0;
                new MutationObserver((all) => {
                    for (const each of all) window.made += each.addedNodes.length;
                }).observe(document.querySelector(".messages"), { childList: true, subtree: true });
            }"""
        )
        say(page, "Everything, please")
        until_answered(page)
        assert page.locator(".markdown > p").count() == 201
        assert page.evaluate("window.made") < 1000  # each paragraph once, and the last one at each frame
        assert page.evaluate("document.documentElement.scrollTop > 1000")  # the end is in sight


def test_a_page_that_complains_fails_its_test(browser: Browser):
    with (
        pytest.raises(AssertionError, match="the page complained"),
        open_page(browser, "data:text/html,<script>undefined.x</script>"),
    ):
        pass
