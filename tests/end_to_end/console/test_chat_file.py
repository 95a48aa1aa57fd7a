"""Conversations of the console's playground in files: what an export has is there again after an import."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.helpers.threaded_server import ThreadedServer

pytest.importorskip("playwright", reason="playwright, which drives the browser, is missing")

from playwright.sync_api import Browser, Route, expect

from tests.helpers.browser import open_page
from tests.helpers.playground import chat, choose, import_file, say, text_of, until_answered, until_true

pytestmark = pytest.mark.process


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


def kept(**message: object) -> bytes:
    return json.dumps({"messages": [message]}).encode()


HOLD_THE_FIRST = """() => {
    const text = Blob.prototype.text;
    window.held = [];
    Blob.prototype.text = async function () {
        if (!held.length) await new Promise((goOn) => held.push(goOn));
        return text.call(this);
    };
}"""


def test_the_file_that_was_chosen_last_is_shown_though_one_before_it_is_read_later(
    browser: Browser, served: ThreadedServer
):
    with open_page(browser, chat(served)) as page:
        page.evaluate(HOLD_THE_FIRST)
        import_file(page, kept(role="user", content="The first"))
        import_file(page, kept(role="user", content="The second"))
        question = page.get_by_role("article", name="You")
        expect(question).to_contain_text("The second")
        page.evaluate("held[0](); new Promise((goOn) => setTimeout(goOn, 50))")
        expect(question).to_contain_text("The second")


def test_what_is_no_token_or_no_choice_is_left_out_wherever_it_was_kept(browser: Browser, served: ThreadedServer):
    tokens = [{"token": "a", "logprob": -1, "bytes": [1e12], "top": [None]}]
    part = {"kind": "text", "text": "An answer", "tokens": tokens}
    answer = {"role": "assistant", "model": "<b>m</b>", "parts": [part], "outcome": {"usage": {"completion": 1}}}
    choices = {"format": "poem", "toolChoice": 3, "thinking": "perhaps", "sampling": {"seed": 4, "constructor": 1}}
    content = json.dumps({"messages": [answer], "choices": choices})
    with open_page(browser, chat(served)) as page:
        import_file(page, content.encode())
        expect(until_answered(page)).to_contain_text("<b>m</b>")
        expect(until_answered(page).locator(".markdown")).to_have_text("An answer")
        assert page.locator("#choice-format").input_value() == "text"
        page.evaluate("(content) => localStorage.setItem(`trillm.chat ${location.pathname}`, content)", content)
        page.reload()
        expect(until_answered(page).locator(".markdown")).to_have_text("An answer")
        expect(page.locator("#choice-seed")).to_have_value("4")
        expect(page.locator("#state-word")).to_have_text("ready")


def test_the_model_of_a_file_is_chosen_though_the_list_of_models_comes_later(browser: Browser, served: ThreadedServer):
    listed = {"object": "list", "data": [{"id": "one"}, {"id": "other"}]}
    asked: list[Route] = []
    with open_page(browser, f"{served.url}/version", expected="favicon") as page:
        page.route("**/v1/models", lambda route: asked.append(route))
        page.goto(chat(served))
        expect(page.locator("#state-word")).to_have_text("ready")
        content = {"messages": [{"role": "user", "content": "Hello"}], "choices": {"model": "other"}}
        import_file(page, json.dumps(content).encode())
        expect(page.get_by_role("article", name="You")).to_be_visible()
        asked[0].fulfill(json=listed)
        expect(page.get_by_label("Model", exact=True)).to_have_value("other")


def test_each_tab_keeps_its_own_conversation_and_a_new_one_finds_the_last(browser: Browser, served: ThreadedServer):
    with open_page(browser, chat(served)) as page:
        question = "article[aria-label=You]"
        import_file(page, kept(role="user", content="In the first tab"))
        expect(page.locator(question)).to_contain_text("In the first tab")
        other = page.context.new_page()
        other.goto(chat(served))
        expect(other.locator(question)).to_contain_text("In the first tab")
        import_file(other, kept(role="user", content="In the other tab"))
        expect(other.locator(question)).to_contain_text("In the other tab")
        until_true(page, "sessionStorage[`trillm.chat ${location.pathname}`]")
        for tab, words in ((page, "In the first tab"), (other, "In the other tab")):
            tab.reload()
            expect(tab.locator(question)).to_contain_text(words)
        other.close()


BAD_LIST = {"kind": "list", "label": "a", "error": "", "tools": [{"toString": 1}]}


def test_what_is_wrong_with_a_file_is_said_in_words(browser: Browser, served: ThreadedServer):
    told = {
        "messages[0] has no list where one belongs": {"tool_calls": {"a": 1}},
        "messages[0] has a part of no known kind": {"parts": [{"kind": "toString"}]},
        "messages[0] has no text where one belongs": {"parts": [BAD_LIST]},
    }
    with open_page(browser, chat(served)) as page:
        for words, answer in told.items():
            import_file(page, kept(role="assistant", **answer))
            expect(page.locator("#chat .notice")).to_have_text(f"conversation.json cannot be read: {words}")
