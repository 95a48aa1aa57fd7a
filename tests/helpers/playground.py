"""What a visitor does in the console's playground, in the words of its tests (tests/end_to_end/console)."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.helpers.threaded_server import ThreadedServer

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is missing")
Locator, Page, expect = playwright_api.Locator, playwright_api.Page, playwright_api.expect

REFUSED = "Failed to load resource"
"""What Chromium writes of any answer that is no 200."""


def chat(served: ThreadedServer, root_path: str = "") -> str:
    return f"{served.url}{root_path}/#chat"


def until_true(page: Page, condition: str) -> None:
    """Until the condition, in JavaScript, holds. Playwright's own wait needs eval, which the page's policy forbids."""
    script = f"""async () => {{
        for (let tries = 0; tries < 500; tries += 1) {{
            if ({condition}) return true;
            await new Promise((goOn) => requestAnimationFrame(goOn));
        }}
        return false;
    }}"""
    assert page.evaluate(script), condition


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


def choose(page: Page, group: str, **numbers: str) -> None:
    """Open a group of the settings, and fill in fields by their ids."""
    details = page.locator("details", has=page.get_by_text(group, exact=True)).last
    if details.get_attribute("open") is None:
        page.get_by_text(group, exact=True).click()
    for name, value in numbers.items():
        page.locator(f"#choice-{name}").fill(value)


def import_file(page: Page, content: bytes) -> None:
    file = {"name": "conversation.json", "mimeType": "application/json", "buffer": content}
    page.locator("input[type=file]").set_input_files(file)


def run_script(command: list[str], script: str, key: str = "none") -> str:
    """What "As code" shows, run as a visitor would run it: what it writes."""
    environment = os.environ | {"OPENAI_API_KEY": key}
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
