"""The console's page and files: what is served under which path, to whom, and with which headers."""

from __future__ import annotations

import re

import pytest

from app.console_files import console_files, public_paths
from tests.helpers.app_under_test import make_app
from tests.helpers.asgi import Exchange, http_scope

PAGE = "/"
PAGES = {"docs", "openapi.json", "metrics", "ready"}
"""Which the page links to and the server has besides."""


async def test_the_page_and_its_files_need_no_key_and_all_else_does() -> None:
    under_test = make_app(api_keys=("k",))
    for path in public_paths():
        assert (await under_test.get(path)).status_code == 200, path
    for path in ("/house", "/console/", "/console/none.js", "/console/index.html", "/console/../house", "//"):
        assert (await under_test.get(path)).status_code == 401, path


@pytest.mark.parametrize(
    "name", ["index.html", "none.js", "../cli.py", "vendor/../../cli.py", "__init__.py", "", "%2e%2e/cli.py"]
)
async def test_only_names_that_are_in_the_table_are_served(name: str) -> None:
    reply = await make_app().get(f"/console/{name}")
    assert reply.status_code == 404
    assert reply.json["error"]["type"]


async def test_the_page_runs_nothing_but_its_own_files() -> None:
    page = await make_app().get(PAGE)
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self'; frame-ancestors 'none';")
    assert policy.endswith("require-trusted-types-for 'script'; trusted-types 'none'")
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert not re.search(r"<script(?![^>]*\ssrc=)|\son\w+=|\sstyle=|<style|https?://", page.text)


@pytest.mark.parametrize("name", [name for name in console_files() if name.endswith(".js")])
def test_no_script_makes_markup_or_code_of_text(name: str) -> None:
    written = console_files()[name].data.decode()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", written
    )


async def test_all_that_the_page_names_is_there_and_is_relative_so_that_a_path_prefix_holds() -> None:
    named = set(re.findall(r'(?:src|href)="([^"#]+)"', (await make_app().get(PAGE)).text)) - PAGES
    assert named
    assert named <= {path.removeprefix("/") for path in public_paths()}
    for name, file in console_files().items():
        if name.endswith(".js"):
            for module in re.findall(r'^(?:import|export) .*?from "\./([^"]+)"', file.data.decode(), re.MULTILINE):
                assert module in console_files(), (name, module)


async def test_below_a_path_prefix_everything_is_where_the_page_says() -> None:
    app = make_app(api_keys=("k",)).app
    for path in ("/llm/", "/llm/console/main.js"):
        exchange = Exchange(http_scope("GET", path, root_path="/llm"))
        await exchange.run(app)
        assert exchange.status == 200, path


async def test_a_browser_asks_whether_a_file_is_still_the_same_and_is_told_so_without_it() -> None:
    under_test = make_app()
    first = await under_test.get("/console/main.js")
    assert first.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert first.headers["Cache-Control"] == "no-cache"
    for etag, status in ((first.headers["ETag"], 304), (f"W/{first.headers['ETag']}", 304), ('"other"', 200)):
        exchange = Exchange(http_scope("GET", "/console/main.js", [(b"if-none-match", etag.encode())]))
        await exchange.run(under_test.app)
        assert exchange.status == status
        assert bool(exchange.data) == (status == 200)


async def test_a_head_tells_how_long_the_file_is() -> None:
    under_test = make_app()
    reply = await under_test.send("HEAD", PAGE, b"")
    assert reply.status_code == 200
    assert int(reply.headers["Content-Length"]) == len((await under_test.get(PAGE)).data)


async def test_what_an_open_page_asks_every_second_is_no_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    under_test = make_app()
    with caplog.at_level("INFO", "trillm.access"):
        for path in ("/house", "/console/main.js", "/console/vendor/uPlot.min.css"):
            await under_test.get(path)
        assert not caplog.records
        await under_test.get(PAGE)
    assert ['"GET /" 200' in record.getMessage() for record in caplog.records] == [True]


async def test_without_the_console_there_is_no_page_but_the_house_is_told() -> None:
    under_test = make_app(has_console=False)
    assert (await under_test.get(PAGE)).status_code == 404
    assert (await under_test.get("/console/main.js")).status_code == 404
    assert (await under_test.get("/house")).status_code == 200
