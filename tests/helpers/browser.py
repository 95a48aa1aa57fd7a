"""A real browser, headless, for what only one can tell of the console: Debian's chromium, driven by playwright.

Tests of it are plain functions (playwright's are synchronous here), with a server `in_thread` (threaded_server.py):

    def test_it_says_that_it_is_ready(browser, served):
        with open_page(browser, served.url) as page:
            expect(page.get_by_role("status")).to_have_text("ready")

A page that complains (an exception, an error on its console, something that its policy forbids) fails its test.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
OWN_PATH = "TRILLM_TEST_BROWSER"

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is missing")
Browser, ConsoleMessage, Page = playwright_api.Browser, playwright_api.ConsoleMessage, playwright_api.Page

PATIENCE_MS = 15_000
"""That an expectation may take on a busy machine; none takes it when all is well."""

playwright_api.expect.set_options(timeout=PATIENCE_MS)

_TELL_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
    console.error(`the policy forbids ${event.violatedDirective}: ${event.blockedURI}`));
"""


def find_browser() -> str:
    """Its path. Skips the test where there is none."""
    if told := os.environ.get(OWN_PATH):
        return told
    for name in NAMES:
        if found := shutil.which(name):
            return found
    pytest.skip(f"no browser: none of {', '.join(NAMES)} is in PATH, and {OWN_PATH} names none")


@contextmanager
def open_browser() -> Iterator[Browser]:
    path = find_browser()
    # Chromium's own sandbox does not work for root, and wants /dev/shm, which containers keep small.
    flags = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(
    browser: Browser,
    url: str,
    *,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
    expected: str | None = None,
    permissions: tuple[str, ...] = (),
) -> Iterator[Page]:
    """The page at the URL, with no storage but its own and without animations.

    It may complain of what the pattern `expected` is found in: that a request was refused (Chromium writes "Failed to
    load resource"), say. Afterwards any other complaint is an AssertionError.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        permissions=list(permissions),
        locale="en-GB",
    )
    complaints: list[str] = []
    try:
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(_TELL_VIOLATIONS)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(f"exception: {error.stack or error.message}"))
        page.on("console", lambda message: complaints.extend(_complaint(message)))
        page.goto(url)
        yield page
    finally:
        context.close()
    unexpected = [said for said in complaints if expected is None or not re.search(expected, said)]
    assert not unexpected, f"the page complained: {unexpected}"


def _complaint(message: ConsoleMessage) -> list[str]:
    if message.type not in ("error", "warning"):
        return []
    return [f"{message.type}: {message.text} ({message.location.get('url', '')})"]


def screenshot(page: Page, name: str) -> Path | None:
    """To look at, where TRILLM_TEST_SCREENSHOTS names a directory: otherwise nothing is written."""
    directory = os.environ.get("TRILLM_TEST_SCREENSHOTS")
    if not directory:
        return None
    path = Path(directory) / f"{name}.png"
    page.screenshot(path=str(path), full_page=True)
    return path
