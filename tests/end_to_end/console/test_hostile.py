"""What a model, a tool or something between may write: it is shown as what it is, and the page goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.threaded_server import ThreadedServer

pytest.importorskip("playwright", reason="playwright, which drives the browser, is missing")

from playwright.sync_api import Browser, expect

from tests.helpers.browser import open_page
from tests.helpers.playground import answers, chat, say, until_answered

pytestmark = pytest.mark.process

Run = Callable[..., Any]

LEGIBLE = """async (text) => {
    const { legible } = await load("chat_legible.js");
    return legible(text);
}"""


def event(**fields: object) -> str:
    return f"data: {json.dumps(fields)}\n\n"


def chunk(**delta: object) -> str:
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])


END = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]) + "data: [DONE]\n\n"


def test_arguments_of_a_call_are_shown_as_they_were_written(run: Run):
    given = '{"n":12345678901234567890,"path":"/tmp","path":"/etc","f":1.0,"e":[],"s":"a\\n\\u202eb","o":{"x":[1,2]}}'
    shown = run(LEGIBLE, given)
    assert json.loads(shown, object_pairs_hook=list) == json.loads(given, object_pairs_hook=list)
    for line in ('  "n": 12345678901234567890,', '  "path": "/tmp",', '  "path": "/etc",', '  "f": 1.0,', '  "e": [],'):
        assert line in shown.split("\n")
    assert run(LEGIBLE, '{"file": "\u202egpj.exe"}') == '{\n  "file": "\\u202egpj.exe"\n}'
    assert run(LEGIBLE, '{"half": "\u202e') == '{"half": "\\u202e'
    assert len(run(LEGIBLE, "[" * 5000 + "]" * 5000)) < 1_000_000
    assert len(run(LEGIBLE, json.dumps("x" * 2_000_000))) == 2_000_002


def test_what_is_no_answer_is_told_to_be_none_and_what_came_stays(browser: Browser, served: ThreadedServer):
    half = chunk(content="half")
    told = {
        half + "data: null\n\n" + END: "The server wrote what does not belong into an answer.",
        half + chunk(tool_calls={"a": 1}) + END: "The server wrote what does not belong into an answer.",
        half + event(error="The engine is tired.") + END: "The engine is tired.",
        half + event(error={"message": {"a": 1}}) + END: "The server has ended the answer with an error.",
        half: "The connection broke before the answer was whole.",
        "<html>": "Something before the server has answered with a page, which may ask for a login.",
    }
    with open_page(browser, chat(served)) as page:
        bodies = list(told)
        page.route(
            "**/v1/chat/completions",
            lambda route: route.fulfill(
                content_type="text/html" if bodies[0] == "<html>" else "text/event-stream", body=bodies.pop(0)
            ),
        )
        for count, (body, words) in enumerate(told.items(), 1):
            say(page, "Hello")
            expect(page.get_by_role("button", name="Retry")).to_have_count(count)
            answer = answers(page).last
            expect(answer.get_by_role("alert")).to_contain_text(words)
            if half in body:
                expect(answer.locator(".text")).to_have_text("half")


def test_an_answer_without_what_is_not_needed_is_whole(browser: Browser, served: ThreadedServer):
    bodies = [
        chunk(content="whole", tool_calls=None) + event(choices=[], usage={}) + END,
        chunk(content="whole") + event(choices=[], usage={"prompt_tokens": "<b>", "completion_tokens": None}) + END,
    ]
    with open_page(browser, chat(served)) as page:
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body=bodies.pop(0)))
        for count in (1, 2):
            say(page, "Hello")
            answer = until_answered(page, count)
            expect(answer.locator(".text")).to_have_text("whole")
            expect(answer.locator(".facts")).not_to_contain_text("in")


LEFT_OF = """(paragraph) => {
    const range = document.createRange();
    range.selectNodeContents(paragraph);
    return range.getBoundingClientRect().left - paragraph.getBoundingClientRect().left;
}"""


def test_each_paragraph_begins_where_its_own_writing_does_and_only_the_words_are_printed(
    browser: Browser, served: ThreadedServer
):
    body = chunk(content="مرحبا (ABC) 123.\n\nHello.") + END
    with open_page(browser, chat(served)) as page:
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
        say(page, "Hello")
        paragraphs = until_answered(page).locator("p").filter(has_text=".")
        assert paragraphs.nth(0).evaluate(LEFT_OF) > 100
        assert paragraphs.nth(1).evaluate(LEFT_OF) == 0
        page.emulate_media(media="print")
        expect(paragraphs.nth(1)).to_be_visible()
        for what in ("Message", "Temperature"):
            expect(page.get_by_label(what, exact=True)).to_be_hidden()
        expect(page.get_by_role("button")).to_have_count(0)
