"""Calls of tools in the console's playground: of functions, which the visitor answers, and of MCP servers."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from tests.end_to_end.console.conftest import KEY, ROOT_PATH
from tests.helpers.threaded_server import ThreadedServer

pytest.importorskip("playwright", reason="playwright, which drives the browser, is missing")

from playwright.sync_api import Browser, expect

from tests.helpers.browser import open_page
from tests.helpers.playground import REFUSED, answers, chat, choose, run_script, say, text_of, until_answered

pytestmark = pytest.mark.process


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
        advice = page.locator(".composer").get_by_role("status")
        expect(advice).to_have_text(
            re.compile("shows it no tools in a form that is known: it calls one only if “Calls are” is “required”")
        )
        page.get_by_label("Calls are").select_option("required")
        expect(advice).to_be_empty()
        say(page, "Where is the boat?")
        until_answered(page)
        calls = answers(page).first.locator(".call")
        expect(calls.first).to_contain_text(re.compile(r'"boat": "(gull|tern)"'))

        result = page.get_by_label("Result of look_up").first
        expect(result).to_be_focused()
        say(page, "Another question")
        expect(page.get_by_text("First give what look_up")).to_be_visible()
        page.locator("#choice-temperature").fill("3")
        for _ in range(calls.count()):
            page.get_by_label("Result of look_up").first.fill('{"harbour": "north"}')
            page.get_by_role("button", name="Send result").first.click()
        expect(page.locator("#chat").get_by_role("alert").get_by_text("Temperature must be")).to_be_visible()
        page.locator("#choice-temperature").fill("")
        for _ in range(calls.count()):
            expect(page.get_by_label("Result of look_up").first).to_have_value('{"harbour": "north"}')
            page.get_by_role("button", name="Send result").first.click()
        assert text_of(until_answered(page, 2))
        expect(calls.first).to_contain_text("north")
        page.reload()
        expect(answers(page).first).to_contain_text("north")


def seed_of_one_call(locked: ThreadedServer, question: str) -> str:
    """With which a dummy calls hoist once, and not several times."""
    tools = [{"type": "mcp", "server_label": "signals", "require_approval": "always"}]
    body = {"input": [{"role": "user", "content": question}], "tools": tools, "tool_choice": "required"}
    for seed in range(50):
        asked = body | {"seed": seed, "store": False, "max_output_tokens": 120}
        headers = {"Authorization": f"Bearer {KEY}"}
        reply = httpx.post(f"{locked.url}{ROOT_PATH}/v1/responses", json=asked, headers=headers, timeout=30).json()
        if [item["type"] for item in reply["output"]] == ["mcp_list_tools", "mcp_approval_request"]:
            return str(seed)
    raise AssertionError("no seed gives one call")


def test_an_mcp_server_s_call_is_allowed_by_hand_and_shown_with_its_result(browser: Browser, locked: ThreadedServer):
    with open_page(browser, chat(locked, ROOT_PATH), expected=REFUSED) as page:
        page.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        choose(page, "Sampling", max_tokens="120", seed=seed_of_one_call(locked, "Hoist it"))
        choose(page, "Tools")
        page.get_by_label("signals").check()
        page.get_by_label("Calls are").select_option("required")
        say(page, "Hoist it")
        until_answered(page)
        first = answers(page).first
        expect(first).to_contain_text("signals has 1 tool")
        card = first.get_by_role("group", name="The model wants to call signals.hoist. Allow or refuse it.")
        expect(card).to_be_focused()
        page.keyboard.press("Enter")  # once too often
        expect(answers(page)).to_have_count(1)
        first.get_by_role("button", name="Allow signals.hoist").click()
        second = until_answered(page, 2)
        expect(first).to_contain_text("You have allowed it.")
        second.get_by_text("signals.hoist").click()
        expect(second).to_contain_text(re.compile("The (red|blue) flag flies"))

        page.get_by_role("button", name="As code").click()
        curl = page.get_by_role("dialog").locator("code").text_content()
        assert "/v1/responses" in curl
        assert KEY not in curl + page.evaluate("JSON.stringify(localStorage)")
        assert '"type":"response.' in run_script(["sh", "-s"], curl, KEY)
