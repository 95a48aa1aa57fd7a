"""The console in a real browser: the house as it is drawn, its charts, the key, and what the page does when the server
is away. The playground is in test_console_chat.py."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.helpers.server import open_server
from tests.helpers.threaded_server import ThreadedServer, in_thread

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is missing")

from tests.helpers.browser import open_page, screenshot  # noqa: E402  it needs playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

expect = playwright_api.expect
pytestmark = pytest.mark.process

KEY = "a-key-of-this-test"


@pytest.fixture(scope="module")
def served(checkpoint: Path) -> Iterator[ThreadedServer]:
    with in_thread(open_server(checkpoint, "--dummy-step-seconds", "0.01")) as server:
        yield server


def actor(page: Page, name: str) -> Locator:
    return page.locator(f'[data-actor="{name}"]')


def complete(url: str, max_tokens: int, key: str = "") -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"prompt": "Mist over the water", "max_tokens": max_tokens, "ignore_eos": True}
    httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=30).raise_for_status()


def test_each_actor_is_drawn_and_told_in_a_table_and_figures_follow_requests(
    browser: Browser, served: ThreadedServer
) -> None:
    with open_page(browser, served.url) as page:
        for name in ("app", "engine-0", "output-0"):
            expect(actor(page, name).locator(".word")).to_have_text("ready")
            expect(page.get_by_role("row").filter(has_text=name).first).to_contain_text("ready")
        expect(page.locator("#state-word")).to_have_text("ready")
        complete(served.url, 30)
        tile = page.locator("#tiles > div").filter(has_text="Between tokens")
        expect(tile.locator("dd").first).to_have_text(re.compile(r"^[0-9.]+ ms$"))
        expect(page.locator("#drawing svg")).to_have_attribute("aria-label", re.compile("app sends EngineCoreRequest"))
        screenshot(page, "house")


def test_a_killed_engine_is_seen_to_restart_and_what_went_on_is_told(browser: Browser, served: ThreadedServer) -> None:
    with open_page(browser, served.url) as page:
        expect(actor(page, "engine-0").locator(".word")).to_have_text("ready")
        answering = threading.Thread(target=complete, args=(served.url, 200))
        answering.start()
        expect(actor(page, "engine-0")).to_contain_text("1 running")
        os.kill(served.server.children()["engine-0"], signal.SIGKILL)
        expect(actor(page, "engine-0").locator(".word")).to_have_text(re.compile("^restart(ing|ed)"))
        events = page.locator("#events")
        expect(events).to_contain_text("engine-0 ended: killed by SIGKILL")
        expect(events).to_contain_text("engine-0 is ready again")
        expect(events).to_contain_text("1 request went on")
        answering.join()
        for said in ("engine-0 ended: killed by SIGKILL", "engine-0 is ready again"):
            expect(page.get_by_role("log", name="Changes")).to_contain_text(said)
        expect(actor(page, "engine-0")).to_contain_text("1 restart")
        expect(actor(page, "engine-0").locator(".word")).to_have_text("ready")


def test_a_server_that_does_not_answer_is_told_of_and_heard_again(browser: Browser, served: ThreadedServer) -> None:
    with open_page(browser, served.url, expected="ERR_FAILED") as page:
        expect(page.locator("#state-word")).to_have_text("ready")
        page.route("**/house", lambda route: route.abort())
        expect(page.get_by_role("alert").filter(has_text="No answer since")).to_be_visible()
        expect(page.locator("#state-word")).to_have_text("no answer")
        page.unroute("**/house")
        expect(page.locator("#state-word")).to_have_text("ready")
        expect(page.locator("#banner")).to_be_hidden()
        expect(page.locator("#events")).to_contain_text("the server answers again")


def test_a_server_that_was_started_again_is_told_as_that(browser: Browser, served: ThreadedServer) -> None:
    with open_page(browser, served.url) as page:
        expect(page.locator("#state-word")).to_have_text("ready")

        def younger(route: object) -> None:
            response = route.fetch()  # type: ignore[attr-defined]
            house = response.json()
            house["started_at"] += 60
            house["engines"][0]["generation_tokens"] = 0
            route.fulfill(response=response, json=house)  # type: ignore[attr-defined]

        page.route("**/house", younger)
        expect(page.locator("#events")).to_contain_text("the server was started again")
        page.unroute("**/house", younger)


EACH_FITS = """
() => [...document.querySelectorAll("#charts canvas")].every((one) =>
  one.clientWidth > 200 && one.clientWidth <= one.closest(".plot").clientWidth && one.clientWidth < 400)
"""


def test_charts_draw_what_happens_and_say_it_in_words(browser: Browser, served: ThreadedServer) -> None:
    with open_page(browser, f"{served.url}/#charts") as page:
        charts = page.locator("#charts").get_by_role("img")
        expect(charts).to_have_count(6)
        complete(served.url, 40)
        expect(charts.nth(1)).to_have_attribute("aria-label", re.compile(r"^Tokens, .*generated [1-9]"))
        expect(charts.nth(2)).to_have_attribute("aria-label", re.compile(r"p50 [0-9.]+ ms, p95 [0-9.]+ ms"))
        expect(page.locator("#charts canvas")).to_have_count(6)
        page.set_viewport_size({"width": 400, "height": 800})
        page.wait_for_function(EACH_FITS)
        screenshot(page, "charts-narrow")


def test_without_a_key_nothing_is_shown_and_a_wrong_one_is_said_to_be_wrong(browser: Browser, checkpoint: Path) -> None:
    flags = ("--api-key", KEY, "--root-path", "/llm")
    with (
        in_thread(open_server(checkpoint, *flags)) as served,
        open_page(browser, f"{served.url}/llm/", expected="401") as page,
    ):
        dialog = page.get_by_role("dialog", name="API key")
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("alert").filter(has_text="This server needs a key")).to_be_visible()
        page.get_by_role("button", name="Enter key").click()
        expect(dialog).to_be_visible()
        expect(page.get_by_label("Key", exact=True)).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("The server does not know this key")
        page.keyboard.type(KEY)
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(page.locator("#state-word")).to_have_text("ready")
        page.reload()
        expect(page.locator("#state-word")).to_have_text("ready")
        assert KEY not in page.evaluate("() => JSON.stringify(localStorage)")


def test_the_theme_is_the_visitor_s_choice_and_stays(browser: Browser, served: ThreadedServer) -> None:
    with open_page(browser, served.url) as page:
        button = page.get_by_role("button", name="Theme")
        for theme in ("light", "dark"):
            button.click()
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        button.click()
        expect(button).to_have_text("Theme: system")


def test_by_keyboard_one_skips_to_the_content_and_changes_views(browser: Browser, served: ThreadedServer) -> None:
    with open_page(browser, served.url) as page:
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        page.get_by_role("link", name="Charts").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#charts")).to_be_visible()
        expect(page.locator("#house")).to_be_hidden()
        expect(page.get_by_role("link", name="Charts")).to_have_attribute("aria-current", "page")


CONTRAST = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (color) => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (color) => {
    const [r, g, b] = rgb(color).map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(document.documentElement);
  const of = (name) => light(style.getPropertyValue(name));
  const ratio = (one, other) => (Math.max(of(one), of(other)) + 0.05) / (Math.min(of(one), of(other)) + 0.05);
  const found = {};
  for (const text of ["--text", "--muted", "--accent", "--ok", "--warn", "--bad"]) {
    for (const ground of ["--bg", "--panel", "--shade"]) found[`${text} on ${ground}`] = ratio(text, ground);
  }
  found["--on-accent on --accent"] = ratio("--on-accent", "--accent");
  return found;
}
"""


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_colour_has_the_contrast_that_aa_asks_for(
    browser: Browser, served: ThreadedServer, dark: bool
) -> None:
    with open_page(browser, served.url, dark=dark) as page:
        low = {pair: round(ratio, 2) for pair, ratio in page.evaluate(CONTRAST).items() if ratio < 4.5}
        assert not low


@pytest.mark.parametrize("view", ["house", "charts"])
def test_on_a_narrow_screen_nothing_is_wider_than_it(browser: Browser, served: ThreadedServer, view: str) -> None:
    with open_page(browser, f"{served.url}/#{view}", width=400) as page:
        expect(page.locator("#state-word")).to_have_text("ready")
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


QUANTILES = """
async () => {
  const { quantile } = await import(new URL("console/figures.js", document.baseURI).href);
  const before = { bounds: [0.1, 0.2, 0.4], counts: [5, 0, 0, 0], sum: 0 };
  const of = (counts, share) => quantile(before, { ...before, counts }, share);
  const asked = [[[5, 0, 0, 0], 0.5], [[5, 10, 0, 0], 0.5], [[5, 10, 10, 0], 0.95],
    [[9, 0, 0, 0], 0.25], [[5, 0, 0, 3], 0.5]];
  return asked.map(([counts, share]) => of(counts, share));
}
"""


def test_quantiles_are_those_of_what_came_since_and_lie_within_buckets(
    browser: Browser, served: ThreadedServer
) -> None:
    with open_page(browser, served.url) as page:
        found = page.evaluate(QUANTILES)
        assert found[0] is None
        assert found[1:] == pytest.approx([0.15, 0.38, 0.025, 0.4])


LAYOUTS = """
async () => {
  const { layout } = await import(new URL("console/layout.js", document.baseURI).href);
  const actor = (name, kind, engine_index = null) => ({ name, kind, engine_index });
  const wrong = [];
  for (const engines of [1, 2, 8]) {
    for (const servers of [0, 3]) {
      const actors = [actor("app", "app"), actor("weights-0", "weights"), actor("standby-0", "standby")];
      const links = [];
      for (let i = 0; i < servers; i++) actors.push(actor(`api-${i}`, "api"));
      for (let i = 0; i < (servers || 1); i++) actors.push(actor(`output-${i}`, "output"));
      for (let i = 0; i < engines; i++) {
        actors.push(actor(`engine-${i}`, "engine", i), actor(`rank-${i}.1`, "rank", i), actor(`kv-${i}`, "kv", i));
        const [engine, kv] = [`engine-${i}`, `kv-${i}`];
        const pairs = [["app", engine], [engine, "output-0"], [engine, kv], [kv, engine]];
        for (const [from, to] of pairs) links.push({ from, to, sends: `${from} ${to}`, socket: "PUSH/PULL" });
      }
      links.push({ from: "output-0", to: "app", sends: "RequestOutputs", socket: "PUSH/PULL" });
      for (const width of [300, 420, 859, 860, 1100, 1380]) {
        const { boxes, ways, height } = layout({ actors, links }, width);
        const placed = [...boxes.values()];
        const isOut = placed.some((b) => b.x < 0 || b.y < 0 || b.x + b.width > width || b.y + b.height > height);
        const overlap = placed.some((a, i) => placed.some((b, j) => i < j && a.x < b.x + b.width && b.x < a.x + a.width
          && a.y < b.y + b.height && b.y < a.y + a.height));
        const isWhole = placed.length === actors.length && ways.length === links.length;
        const isDrawn = ways.every((way) => !way.path.includes("NaN"));
        const isRight = !isOut && !overlap && isWhole && isDrawn;
        if (!isRight) wrong.push([engines, servers, width, isOut, overlap, isWhole, isDrawn]);
      }
    }
  }
  return wrong;
}
"""


def test_every_actor_has_a_place_of_its_own_in_every_house_on_every_screen(
    browser: Browser, served: ThreadedServer
) -> None:
    with open_page(browser, served.url) as page:
        assert page.evaluate(LAYOUTS) == []
