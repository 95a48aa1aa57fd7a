"""What the console's playground asks of an answer's form, how it shows it, and the request as code."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.helpers.threaded_server import ThreadedServer

pytest.importorskip("playwright", reason="playwright, which drives the browser, is missing")

from playwright.sync_api import Browser, expect

from tests.helpers.browser import open_page, screenshot
from tests.helpers.playground import answers, chat, choose, run_script, say, text_of, until_answered

pytestmark = pytest.mark.process


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
        expect(page.get_by_text(re.compile(r"The schema must be JSON: .*[^.]\. See the settings\.$"))).to_be_visible()
        expect(answers(page)).to_have_count(0)
        page.get_by_role("button", name="Put in an example").click()
        expect(page.get_by_label("JSON schema")).to_have_value(re.compile('"additionalProperties": false'))

        schema = {"type": "object", "properties": {"boat": {"enum": ["gull", "tern"]}}, "required": ["boat"]}
        page.get_by_label("JSON schema").fill(json.dumps(schema | {"additionalProperties": False}))
        say(page, "Which boat?")
        assert json.loads(text_of(until_answered(page)))["boat"] in ("gull", "tern")


def told_by_curl(output: str) -> str:
    events = [json.loads(line[6:]) for line in output.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])


HIDE_CLIPBOARD = """() => {
    window.hidden = navigator.clipboard;
    Object.defineProperty(navigator, "clipboard", { value: undefined });
}"""
"""As it is over plain HTTP from another host."""


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
            assert read(run_script(command, script)) == expected
        screenshot(page, "as-code")
        page.evaluate(HIDE_CLIPBOARD)
        dialog.get_by_label("curl").check()
        copy = dialog.get_by_role("button", name="Copy")
        expect(copy).to_have_text("Copy")
        copy.click()
        expect(copy).to_have_text("Copied")
        expect(copy).to_be_focused()
        assert page.evaluate("hidden.readText()") == dialog.locator("code").text_content()
        dialog.get_by_role("button", name="Close").click()
        expect(dialog).to_be_hidden()
