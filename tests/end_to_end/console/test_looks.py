"""How the console looks and is reached: themes, contrast, narrow screens, names of controls, the keyboard."""

from __future__ import annotations

import pytest

from tests.helpers.threaded_server import ThreadedServer

pytest.importorskip("playwright", reason="playwright, which drives the browser, is missing")

from playwright.sync_api import Browser, expect

from tests.helpers.browser import open_page, screenshot
from tests.helpers.playground import chat, choose, say, until_answered

pytestmark = pytest.mark.process


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

IS_NARROW = "document.documentElement.scrollWidth <= innerWidth"


def test_text_has_the_contrast_that_aa_asks_for_and_nothing_is_wider_than_a_narrow_screen(
    browser: Browser, served: ThreadedServer
):
    with open_page(browser, served.url, width=400) as page:
        expect(page.locator("#state-word")).to_have_text("ready")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            low = {pair: round(ratio, 2) for pair, ratio in page.evaluate(CONTRAST).items() if ratio < 4.5}
            assert not low, scheme
        assert page.evaluate(IS_NARROW)
        page.get_by_role("link", name="Charts").click()
        expect(page.locator("#charts canvas")).to_have_count(6)
        assert page.evaluate(IS_NARROW)


def test_the_theme_is_the_visitor_s_choice_and_views_are_changed_by_keyboard(browser: Browser, served: ThreadedServer):
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

        button = page.get_by_role("button", name="Theme")
        for theme in ("light", "dark"):
            button.click()
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        button.click()
        expect(button).to_have_text("Theme: system")


def test_each_control_of_the_playground_has_a_name_and_fits_a_narrow_window_in_both_themes(
    browser: Browser, served: ThreadedServer
):
    with open_page(browser, chat(served), width=400, height=800) as page:
        page.get_by_text("Settings", exact=True).click()
        choose(page, "Sampling", max_tokens="8")
        choose(page, "Form of the answer")
        page.get_by_label("Show how likely each token was").check()
        choose(page, "Tools")
        page.get_by_label("Functions, whose results you type").check()
        say(page, "Hello")
        until_answered(page)
        assert page.evaluate(UNNAMED) == []
        assert page.evaluate(IS_NARROW)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(FAINT) == [], scheme
            screenshot(page, f"narrow-{scheme}")


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


def test_a_page_that_complains_fails_its_test(browser: Browser):
    with (
        pytest.raises(AssertionError, match="the page complained"),
        open_page(browser, "data:text/html,<script>undefined.x</script>"),
    ):
        pass
