"""A console that needs a key: it asks for one, says when it is wrong, and tells nothing to who has none."""

from __future__ import annotations

import pytest

from tests.end_to_end.console.conftest import KEY, ROOT_PATH, SECOND_KEY
from tests.helpers.threaded_server import ThreadedServer

pytest.importorskip("playwright", reason="playwright, which drives the browser, is missing")

from playwright.sync_api import Browser, Page, expect

from tests.helpers.browser import open_page
from tests.helpers.playground import REFUSED, chat, choose, say, until_answered

pytestmark = pytest.mark.process

HOLD_LIMITS = """
window.limits = [];
AbortSignal.timeout = () => {
    const limit = new AbortController();
    limits.push(limit);
    return limit.signal;
};
"""
"""Limits of requests pass when the test says so."""

LIMITS_PASS = "limits.splice(0).forEach((limit) => limit.abort(new DOMException('late', 'TimeoutError')))"


def enter(page: Page, key: str) -> None:
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    page.keyboard.type(key)
    page.keyboard.press("Enter")


def test_a_wrong_key_is_said_to_be_wrong_and_the_visitor_may_take_their_time(browser: Browser, locked: ThreadedServer):
    with open_page(browser, f"{locked.url}{ROOT_PATH}/", expected=REFUSED) as page:
        page.add_init_script(HOLD_LIMITS)
        page.reload()
        expect(page.locator("#state-word")).to_have_text("needs a key")
        enter(page, "wrong")
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_contain_text("The server does not know this key")
        page.evaluate(LIMITS_PASS)
        enter(page, KEY)
        expect(dialog).to_be_hidden()
        expect(page.locator("#state-word")).to_have_text("ready")
        expect(page.locator("#events > li")).to_have_count(0)  # nothing has happened
        page.reload()
        expect(page.locator("#state-word")).to_have_text("ready")
        assert KEY not in page.evaluate("JSON.stringify(localStorage)")
        page.set_viewport_size({"width": 360, "height": 800})
        expect(page.get_by_role("button", name="Change key")).to_be_visible()
        assert page.locator(".tabs").evaluate("(tabs) => tabs.scrollWidth <= tabs.clientWidth")


def test_who_gives_no_key_sees_nothing_until_they_give_one_wherever_they_are_asked(
    browser: Browser, locked: ThreadedServer
):
    with open_page(browser, chat(locked, ROOT_PATH), expected=REFUSED) as page:
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("alert").filter(has_text="This server needs a key")).to_be_visible()
        expect(page.locator("#state-word")).to_have_text("needs a key")
        expect(page.get_by_text("Waiting for the server", exact=False)).to_have_count(0)
        expect(page.get_by_role("button", name="Enter key")).to_be_visible()
        choose(page, "Sampling", max_tokens="5")
        say(page, "Hello")
        enter(page, SECOND_KEY)
        until_answered(page)
        expect(page.locator("#state-word")).to_have_text("ready")
        expect(page.locator("#banner")).to_be_hidden()
