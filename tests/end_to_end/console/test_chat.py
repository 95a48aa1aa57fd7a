"""The console's playground talks over the API, and says in words what happens to an answer."""

from __future__ import annotations

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.helpers.threaded_server import ThreadedServer

pytest.importorskip("playwright", reason="playwright, which drives the browser, is missing")

from playwright.sync_api import Browser, Route, expect

from tests.helpers.browser import open_page
from tests.helpers.playground import REFUSED, answers, chat, choose, say, text_of, until_answered

pytestmark = pytest.mark.process

QUESTION = "Once upon a time"


@pytest.fixture(scope="module")
def seed(served: ThreadedServer) -> str:
    """With which the answer to the question has at least 100 tokens: those of a dummy end by chance."""

    def is_long(seed: int) -> bool:
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 100, "seed": seed}
        reply = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=30).json()
        return reply["choices"][0]["finish_reason"] == "length"

    with ThreadPoolExecutor(16) as pool:
        long = [seed for seed, found in enumerate(pool.map(is_long, range(16))) if found]
    assert long, "no seed gives 100 tokens"
    return str(long[0])


def test_an_answer_comes_with_its_figures_and_is_there_again_after_a_reload(browser: Browser, served: ThreadedServer):
    with open_page(browser, chat(served)) as page:
        choose(page, "Sampling", max_tokens="20", seed="1")
        say(page, "Hello there")
        answer = until_answered(page)
        expect(answer).to_contain_text("20 tokens out")
        expect(answer).to_contain_text("cut at the limit of tokens")
        first = text_of(answer)
        assert first

        page.locator("#choice-temperature").fill("0.5")
        page.reload()
        expect(page.locator("#choice-temperature")).to_have_value("0.5")
        page.locator("#choice-temperature").fill("")
        expect(page.locator("#choice-max_tokens")).to_have_value("20")
        expect(page.get_by_role("article", name="You")).to_contain_text("Hello there")
        assert text_of(until_answered(page)) == first

        page.get_by_role("button", name="Answer again").click()  # with the same seed
        assert text_of(until_answered(page)) == first
        expect(answers(page)).to_have_count(1)

        page.get_by_role("button", name="Edit").click()
        page.get_by_label("The question, otherwise").fill("Goodbye")
        page.keyboard.press("Enter")
        assert text_of(until_answered(page)) != first
        expect(page.get_by_role("article", name="You")).to_have_text(re.compile("Goodbye"))

        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Clear").click()
        expect(answers(page)).to_have_count(0)
        expect(page.get_by_role("heading", name="Talk to the model")).to_be_visible()

        page.locator("#choice-max_tokens").fill("")
        page.get_by_role("button", name="What is the capital of France?").click()  # with settings that are shown
        for name, value in (("temperature", "0"), ("max_tokens", "256"), ("seed", "1")):
            expect(page.locator(f"#choice-{name}")).to_have_value(value)
        page.keyboard.press("Escape")
        until_answered(page)
        served.until_idle()


def test_escape_stops_an_answer_and_the_server_s_work_for_it(browser: Browser, served: ThreadedServer, seed: str):
    with open_page(browser, chat(served)) as page:
        choose(page, "Sampling", seed=seed)
        say(page, QUESTION)
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        expect(answers(page).locator(".text")).not_to_be_empty()
        assert served.num_requests() == 1
        page.keyboard.press("Escape")
        expect(until_answered(page)).to_contain_text("stopped")
        expect(page.get_by_label("Message", exact=True)).to_be_focused()
        served.until_idle()


def test_an_answer_that_a_visitor_leaves_is_stopped_and_no_connection_was_lost(
    browser: Browser, served: ThreadedServer, seed: str
):
    with open_page(browser, chat(served)) as page:
        choose(page, "Sampling", seed=seed)
        say(page, QUESTION)
        expect(answers(page).locator(".text")).not_to_be_empty()
        page.reload()
        answer = until_answered(page)
        expect(answer).to_contain_text("stopped")
        expect(answer.get_by_role("alert")).to_have_count(0)
        expect(answer.locator(".text")).not_to_be_empty()
        served.until_idle()


def test_an_answer_goes_on_after_its_engine_was_killed_and_the_house_tells_how(
    browser: Browser, served: ThreadedServer, seed: str
):
    with open_page(browser, chat(served)) as page:
        choose(page, "Sampling", max_tokens="100", seed=seed)
        say(page, QUESTION)
        undisturbed = text_of(until_answered(page))
        expect(answers(page)).not_to_contain_text("had died")
        row = page.locator("#actors").get_by_role("row", include_hidden=True).filter(has_text="engine-0")
        restarts = int(row.locator("td").nth(4).text_content() or "")

        page.get_by_role("button", name="Answer again").click()
        expect(answers(page).locator(".text")).not_to_be_empty()
        os.kill(served.server.children()["engine-0"], signal.SIGKILL)
        page.get_by_role("link", name="House").click()
        engine = page.locator('[data-actor="engine-0"]')
        expect(engine.locator(".word")).to_have_text(re.compile("^restart(ing|ed)"))
        events = page.locator("#events")
        expect(events).to_contain_text("engine-0 ended: killed by SIGKILL")
        expect(events).to_contain_text("engine-0 is ready again")
        expect(events).to_contain_text("1 request went on")  # in the same line, unless a reading came between
        for said in ("engine-0 ended: killed by SIGKILL", "engine-0 is ready again"):
            expect(page.get_by_role("log", name="Changes")).to_contain_text(said)
        expect(engine).to_contain_text(f"{restarts + 1} restart")
        expect(engine.locator(".word")).to_have_text("ready")

        page.get_by_role("link", name="Chat").click()
        answer = until_answered(page)
        expect(answer).to_contain_text("100 tokens out")
        expect(answer).to_contain_text("tokens/s")
        expect(answer).to_contain_text("went on after engine-0 had died")
        assert text_of(answer) == undisturbed
        page.reload()
        expect(until_answered(page)).to_contain_text("went on after engine-0 had died")


def test_what_the_server_refuses_is_told_in_its_words_and_can_be_tried_again(browser: Browser, served: ThreadedServer):
    with open_page(browser, chat(served), expected=REFUSED) as page:
        choose(page, "Sampling", max_tokens="100000")
        say(page, "Hello")
        expect(answers(page).get_by_role("alert")).to_contain_text("max_tokens")
        page.locator("#choice-max_tokens").fill("5")
        page.get_by_role("button", name="Retry").click()
        expect(until_answered(page)).to_contain_text("5 tokens out")
        expect(answers(page)).to_have_count(1)

        page.locator("#choice-temperature").fill("3")
        expect(page.get_by_text("Temperature must be from 0 to 2.")).to_be_visible()
        page.get_by_role("button", name="Reset to the server’s defaults").click()
        expect(page.locator("#choice-temperature")).to_have_value("")


def test_a_server_that_asks_for_patience_gets_it(browser: Browser, served: ThreadedServer):
    asked = []

    def refuse_once(route: Route) -> None:
        asked.append(route.request)
        if len(asked) > 1:
            return route.continue_()
        error = {"error": {"message": "The queue is full.", "type": "overloaded", "param": None, "code": None}}
        route.fulfill(status=503, headers={"Retry-After": "1"}, json=error)

    with open_page(browser, chat(served), expected=REFUSED) as page:
        page.route("**/v1/chat/completions", refuse_once)
        choose(page, "Sampling", max_tokens="5")
        say(page, "Hello")
        expect(page.get_by_text("The queue is full. Trying again in 1 s.")).to_be_visible()
        expect(until_answered(page)).to_contain_text("5 tokens out")
        assert len(asked) == 2


def stream(*deltas: dict[str, str], finish: str | None = None) -> str:
    """Of chunks, without an end."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if finish is not None:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)


def test_thoughts_stand_apart_from_the_answer_and_a_stream_that_breaks_is_no_whole_one(
    browser: Browser, served: ThreadedServer
):
    deltas = [{"reasoning": "Let me "}, {"reasoning": "think"}, {"content": "Done <b>"}, {"content": "now</b>"}]
    half = stream({"content": "half "})
    failed = 'data: {"error":{"message":"The engine has given up."}}\n\n'
    done = "data: [DONE]\n\n"
    bodies = [stream(*deltas, finish="stop") + done, half, half + failed + done]
    with open_page(browser, chat(served)) as page:
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body=bodies.pop(0)))
        say(page, "Hello")
        answer = until_answered(page)
        expect(answer.locator(".text")).to_have_text("Done <b>now</b>")
        expect(answer.get_by_text("Let me think")).to_be_hidden()
        answer.get_by_text("Thoughts").click()
        expect(answer.get_by_text("Let me think")).to_be_visible()
        for count, told in enumerate(["broke before", "The engine has given up."], 1):
            say(page, "Hello")
            expect(page.get_by_role("button", name="Retry")).to_have_count(count)
            answer = answers(page).last
            expect(answer.get_by_role("alert")).to_contain_text(told)
            expect(answer.locator(".text")).to_have_text("half")


def test_a_long_answer_costs_no_more_at_its_end_than_at_its_beginning(browser: Browser, served: ThreadedServer):
    word = 'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
    pieces = [word % ("wort " if at % 50 else ".\\n\\n") for at in range(10_000)]
    end = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    with open_page(browser, chat(served)) as page:
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body="".join([*pieces, end])))
        page.evaluate(
            """() => {
                window.made = 0;
                new MutationObserver((all) => {
                    for (const each of all) window.made += each.addedNodes.length;
                }).observe(document.querySelector(".messages"), { childList: true, subtree: true });
            }"""
        )
        say(page, "Everything, please")
        until_answered(page)
        assert page.locator(".markdown > p").count() == 201
        assert page.evaluate("window.made") < 1000  # each paragraph once, and the last one at each frame
        assert page.evaluate("document.documentElement.scrollTop > 1000")  # the end is in sight
