"""The console's house as it is drawn, its charts, and what the page does when the server is away."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.helpers.threaded_server import ThreadedServer

pytest.importorskip("playwright", reason="playwright, which drives the browser, is missing")

from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.helpers.browser import open_page, screenshot
from tests.helpers.playground import until_true

pytestmark = pytest.mark.process


def actor(page: Page, name: str) -> Locator:
    return page.locator(f'[data-actor="{name}"]')


def complete(url: str, max_tokens: int, count: int) -> None:
    body = {"prompt": ["Mist over the water"] * count, "max_tokens": max_tokens, "ignore_eos": True}
    httpx.post(f"{url}/v1/completions", json=body, timeout=30).raise_for_status()


def test_a_server_that_is_away_or_was_started_again_is_told_of(browser: Browser, served: ThreadedServer) -> None:
    with open_page(browser, served.url, expected="ERR_FAILED") as page:
        expect(page.locator("#state-word")).to_have_text("ready")
        page.route("**/house", lambda route: route.abort())
        expect(page.get_by_role("alert").filter(has_text="No answer since")).to_be_visible()
        expect(page.locator("#state-word")).to_have_text("no answer")
        page.unroute("**/house")
        expect(page.locator("#state-word")).to_have_text("ready")
        expect(page.locator("#banner")).to_be_hidden()
        expect(page.locator("#events")).to_contain_text("the server answers again")

        def younger(route: Route) -> None:
            response = route.fetch()
            house = response.json()
            house["started_at"] += 60
            house["engines"][0]["generation_tokens"] = 0
            route.fulfill(response=response, json=house)

        page.route("**/house", younger)
        expect(page.locator("#events")).to_contain_text("the server was started again")
        page.unroute("**/house", younger)


EACH_FITS = """
() => [...document.querySelectorAll("#charts canvas")].every((one) =>
  one.clientWidth > 200 && one.clientWidth <= one.closest(".plot").clientWidth && one.clientWidth < 400)
"""


def test_each_actor_is_drawn_and_told_in_a_table_and_figures_and_charts_follow_requests(
    browser: Browser, served: ThreadedServer
) -> None:
    with open_page(browser, served.url) as page:
        for name in ("app", "engine-0", "output-0"):
            expect(actor(page, name).locator(".word")).to_have_text("ready")
            expect(page.get_by_role("row").filter(has_text=name).first).to_contain_text("ready")
        expect(page.locator("#state-word")).to_have_text("ready")
        expect(page.locator("#drawing svg")).to_have_attribute("aria-label", re.compile("app sends EngineCoreRequest"))
        first = page.locator("#tiles > div").filter(has_text="First token")
        expect(first).to_contain_text("fewer than 5 in 10 s")
        complete(served.url, 40, 5)
        expect(first).to_contain_text(re.compile(r"^First token[0-9.]+ ms ?median of 10 s$"))
        tile = page.locator("#tiles > div").filter(has_text="Between tokens")
        expect(tile.locator("dd").first).to_have_text(re.compile(r"^[0-9.]+ ms$"))
        screenshot(page, "house")

        page.get_by_role("link", name="Charts").click()
        charts = page.locator("#charts").get_by_role("img")
        expect(charts).to_have_count(6)
        expect(charts.nth(1)).to_have_attribute("aria-label", re.compile(r"^Tokens, .*generated [1-9]"))
        expect(charts.nth(2)).to_have_attribute("aria-label", re.compile(r"p50 [0-9.]+ ms, p95 [0-9.]+ ms"))
        expect(page.locator("#charts canvas")).to_have_count(6)
        page.set_viewport_size({"width": 400, "height": 800})
        page.wait_for_function(EACH_FITS)
        screenshot(page, "charts-narrow")


RECORD_PAUSES = """
window.pauses = [];
const later = window.setTimeout;
window.setTimeout = (call, pause) => {
    pauses.push(pause);
    return later(call, pause);
};
"""


def test_a_page_that_nobody_sees_asks_less_often_until_it_is_seen(browser: Browser, served: ThreadedServer) -> None:
    with open_page(browser, f"{served.url}/version", expected="favicon") as page:
        page.add_init_script(RECORD_PAUSES)
        page.goto(served.url)
        until_true(page, "pauses.length")
        assert max(page.evaluate("pauses")) <= 1000
        page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
        until_true(page, "pauses.at(-1) > 1000")
        with page.expect_request("**/house"):
            page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
